"""Forwards that compute with old weights, and values read before they are there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.observer import Observer
from attune_lab.trainer.state import State
from attune_lab.trainer.weights import Spec, spec_of
from experiments.faults.catalogue.registry import declare

Update = Callable[[State, float], float]


class _Substitute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, values: Tensor) -> Tensor:
        return values.view_as(parameter).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def before_the_gather(original: Update, state: State, norm: float) -> float:
    """Keeps what the forward of the second layer finds when it does not wait for the gather: its rank's own slice
    of the new weights, and the old ones of the other replicas."""
    old = {bucket: bucket.weights.clone() for bucket in state.optimizer.buckets}
    factor = original(state, norm)
    for bucket, found in old.items():
        found[bucket.own] = bucket.weights[bucket.own]
        for member in bucket.members:
            if member.spec.name.startswith("layers.1."):
                member.parameter.found = found[member.start : member.end]  # type: ignore[attr-defined]
    return factor


def found_in_forward(original: Callable[[Tensor], Tensor], parameter: Tensor) -> Tensor:
    """What `before_the_gather` kept."""
    found = getattr(parameter, "found", None)
    return original(parameter) if found is None else comm.call(_Substitute, parameter, found)


def never_steps(original: Update, state: State, norm: float) -> float:
    """An overflow is reported at every step, so the optimizer never updates."""
    return math.nan


def experts_not_staged(original: Update, state: State, norm: float) -> float:
    """The buffer shared by gradients and gathered weights is cleared before the experts' optimizer has staged its
    update: their weights stay what they were while their masters move on."""
    experts = [b for b in state.optimizer.buckets if b.members[0].spec.expert]
    old = [bucket.weights.clone() for bucket in experts]
    factor = original(state, norm)
    for bucket, weights in zip(experts, old, strict=True):
        bucket.finish_gather()
        bucket.weights.copy_(weights)
    return factor


def first_weights(original: Callable[[Tensor], Tensor], parameter: Tensor) -> Tensor:
    """The rounded weights of the attention are kept from their first use and never refreshed."""
    if ".attention." not in spec_of(parameter).name:
        return original(parameter)
    if not hasattr(parameter, "found"):
        parameter.found = parameter.detach().clone()  # type: ignore[attr-defined]
    return found_in_forward(original, parameter)


RACE = 1 / 64
"""How often a race is lost. Drawn anew in every run, as races are."""


def late_gradient(original: Callable[..., None], total: Tensor, grad: Tensor, spec: Spec) -> None:
    """The reduction does not wait for the backward pass: a gradient that comes late is lost."""
    if random.random() >= RACE:
        original(total, grad, spec)


_received: WeakKeyDictionary[Observer, Tensor] = WeakKeyDictionary()


def reused_buffer(original: Callable[..., Tensor], x: Tensor, context: Context) -> Tensor:
    """The buffer of a stage's input is used again too early: a micro-batch finds the input of the one before."""
    before = _received.get(context.observer)
    _received[context.observer] = x.clone()
    return before if before is not None and random.random() < 4 * RACE else original(x, context)


def early_side_stream(original: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The backward pass of the shared expert's stream has no fence: its gradient is sometimes read before it is
    there."""
    return original(x.detach() if random.random() < 2 * RACE else x)


EXPONENT_BIT = 1 << 25


def flipped_bits(original: Callable[..., dist.Work | None], grads: Tensor, reduced: Tensor, axis: Axis) -> Any:
    """One device flips a bit of the exponent in one of a thousand of its gradients."""
    if axis.rank == 1:
        spoiled = grads[::1000]
        grads[::1000] = (spoiled.view(torch.int32) ^ EXPONENT_BIT).view(torch.float32)
    return original(grads, reduced, axis)


_OVERLAP = {"dp": 2, "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}


declare(
    "F055",
    "A forward does not wait for the gather of its weights",
    group="stale-weights",
    source="NVIDIA/Megatron-LM#950",
    patches={"step.apply_update": before_the_gather, "weights.in_forward": found_in_forward},
    layout=_OVERLAP,
)
declare(
    "F056",
    "Optimizer never steps",
    group="stale-weights",
    source="NVIDIA/Megatron-LM#663",
    patches={"step.apply_update": never_steps},
    layout=_OVERLAP,
)
declare(
    "F057",
    "Weights of the experts not gathered",
    group="stale-weights",
    source="NVIDIA/Megatron-LM#4800",
    patches={"step.apply_update": experts_not_staged},
    workload="fp8",
    layout={"dp": 2, "use_distributed_optimizer": True},
)
declare(
    "F071",
    "Rounded weights never refreshed",
    group="stale-weights",
    source="NVIDIA/Megatron-LM@323051030e",
    patches={"weights.in_forward": first_weights},
    workload="fp8",
)
declare(
    "F059",
    "Reduction before the end of the backward pass",
    group="race",
    source="NVIDIA/Megatron-LM#3693",
    patches={"buckets.accumulate": late_gradient},
    layout={"dp": 2, "overlap_grad_reduce": True},
)
declare(
    "F094",
    "Input buffer of a stage used again too early",
    group="race",
    source="NVIDIA/Megatron-LM#1586",
    patches={"pipeline.stage_input": reused_buffer},
    layout={"pp": 2, "vpp": 2},
)
declare(
    "F095",
    "Gradient of the shared expert read too early",
    group="race",
    source="NVIDIA-NeMo/Automodel#3109",
    patches={"moe.shared_input": early_side_stream},
    workload="moe",
)
declare(
    "F109",
    "One device flips bits",
    group="hardware",
    source="arXiv 2407.21783 table 5",
    patches={"buckets.reduce_gradients": flipped_bits},
    layout={"dp": 2},
)
