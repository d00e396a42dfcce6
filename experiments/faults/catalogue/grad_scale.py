"""Gradients multiplied by a wrong factor on the way to the optimizer, which Adam hides from the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer.context import Context
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.state import State
from attune_lab.trainer.step import Gradients
from attune_lab.trainer.weights import Spec
from experiments.faults.catalogue.registry import declare

Reduce = Callable[[Tensor, Tensor, Axis], "dist.Work | None"]

GROUP = "grad-scale"
ZERO = {"dp": 2, "use_distributed_optimizer": True}
GTP_RANKS = 64
"""Of the reported run (GTP64, EGTP1)."""
SCALE_CHANGES = 10
"""Step at which the loss scale doubles."""


def last_microbatch_only(original: Callable[..., None], total: Tensor, grad: Tensor, spec: Spec) -> None:
    """A micro-batch's gradient replaces the sum so far in the partition, instead of adding to it."""
    total.copy_(grad)


declare(
    "F010",
    "Partitioned gradients keep the last micro-batch only",
    group=GROUP,
    source="deepspeedai/DeepSpeed#7718",
    patches={"buckets.accumulate": last_microbatch_only},
    layout=ZERO,
    note="The report has the symptom (norms of 0.34 to 0.54 of the right ones), not the cause; this is a likely one.",
)


def divided_twice(original: Callable[..., float], context: Context, mask: Tensor, total: float) -> float:
    """Trainer and engine both divide the loss by the number of micro-batches."""
    return original(context, mask, total) / context.config.microbatches


declare(
    "F012",
    "Division by the number of micro-batches twice",
    group=GROUP,
    source="huggingface/accelerate#3877",
    patches={"loss.loss_weight": divided_twice},
    layout=ZERO,
)


def mean_over_own_group(original: Reduce, grads: Tensor, reduced: Tensor, axis: Axis) -> dist.Work | None:
    """Gradients are averaged over their own replicas; experts have ep times fewer of these than the batch has parts."""
    return original(grads.mul_(dist.get_world_size() / axis.size), reduced, axis)


declare(
    "F013",
    "Gradients of experts ep times too large",
    group=GROUP,
    source="pytorch/torchtitan#1551",
    patches={"buckets.reduce_gradients": mean_over_own_group},
    workload="moe",
    layout={"dp": 4, "ep": 2},
)


def not_divided_alone(original: Reduce, grads: Tensor, reduced: Tensor, axis: Axis) -> dist.Work | None:
    """The division by the world size is part of the reduction, which a group of one rank skips."""
    if axis.size == 1:
        grads.mul_(dist.get_world_size())
    return original(grads, reduced, axis)


declare(
    "F014",
    "No division of gradients where the group has one rank",
    group=GROUP,
    source="pytorch/pytorch#167178",
    patches={"buckets.reduce_gradients": not_divided_alone},
    workload="moe",
    layout={"dp": 2, "ep": 2},
)


def experts_scaled(original: Callable[..., None], total: Tensor, grad: Tensor, spec: Spec) -> None:
    """Gradients of experts keep the factor of a group that dense weights alone are averaged over."""
    original(total, grad * GTP_RANKS if spec.expert else grad, spec)


declare(
    "F015",
    "Gradients of experts too large by GTP / EGTP",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7165",
    patches={"buckets.accumulate": experts_scaled},
    workload="moe",
    layout={"dp": 2, "ep": 2},
)


def with_new_scale(gradients: Gradients, step: int) -> Gradients:
    """The same with a norm that was unscaled with the loss scale of the next step."""
    return replace(gradients, norm=gradients.norm / 2) if step == SCALE_CHANGES else gradients


def clipped_with_new_scale(original: Callable[..., float], state: State, gradients: Gradients) -> float:
    """The norm that gradients are clipped by is half the true one where the loss scale has just doubled."""
    return original(state, with_new_scale(gradients, state.step + 1))


def printed_with_new_scale(original: Callable[..., dict[str, float]], state: State, gradients: Gradients) -> object:
    """The same norm is logged, after the update."""
    return original(state, with_new_scale(gradients, state.step))


declare(
    "F066",
    "Norm of gradients unscaled with the loss scale of the next step",
    group=GROUP,
    source="deepspeedai/DeepSpeed#2695",
    patches={"step.finish_step": clipped_with_new_scale, "step.printed": printed_with_new_scale},
    note="One step of clipping with half the norm.",
)


def averaged_twice(original: Reduce, grads: Tensor, reduced: Tensor, axis: Axis) -> dist.Work | None:
    """The buffer is divided by the number of replicas although the loss already is."""
    return original(grads.div_(axis.size), reduced, axis)


declare(
    "F092",
    "Gradients divided by dp twice",
    group=GROUP,
    source="NVIDIA/Megatron-LM#3754",
    patches={"buckets.reduce_gradients": averaged_twice},
    layout=ZERO,
)
