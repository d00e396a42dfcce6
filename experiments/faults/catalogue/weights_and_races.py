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


def _declare(name: str, title: str, source: str, patches: dict[str, Callable[..., Any]], **settings: Any) -> None:
    declare(name, title, source=source, patches=patches, **{"group": "stale-weights"} | settings)


_declare(
    "F055", "a forward does not wait for the gather of its weights", "NVIDIA/Megatron-LM#950",
    {"step.apply_update": before_the_gather, "weights.in_forward": found_in_forward}, layout=_OVERLAP,
)  # fmt: skip
_declare("F056", "optimizer never steps", "NVIDIA/Megatron-LM#663", {"step.apply_update": never_steps}, layout=_OVERLAP)
_declare(
    "F057", "weights of the experts not gathered", "NVIDIA/Megatron-LM#4800",
    {"step.apply_update": experts_not_staged}, workload="fp8", layout={"dp": 2, "use_distributed_optimizer": True},
)  # fmt: skip
_declare(
    "F071", "rounded weights never refreshed", "NVIDIA/Megatron-LM@323051030e",
    {"weights.in_forward": first_weights}, workload="fp8",
)  # fmt: skip
_declare(
    "F059", "reduction before the end of the backward pass", "NVIDIA/Megatron-LM#3693",
    {"buckets.accumulate": late_gradient}, group="race", layout={"dp": 2, "overlap_grad_reduce": True},
)  # fmt: skip
_declare(
    "F094", "input buffer of a stage used again too early", "NVIDIA/Megatron-LM#1586",
    {"pipeline.stage_input": reused_buffer}, group="race", layout={"pp": 2, "vpp": 2},
)  # fmt: skip
_declare(
    "F095", "gradient of the shared expert read too early", "NVIDIA-NeMo/Automodel#3109",
    {"moe.shared_input": early_side_stream}, group="race", workload="moe",
)  # fmt: skip
_declare(
    "F109", "one device flips bits", "arXiv 2407.21783 table 5",
    {"buckets.reduce_gradients": flipped_bits}, group="hardware", layout={"dp": 2},
)  # fmt: skip
