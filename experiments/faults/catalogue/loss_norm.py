"""Losses divided by the wrong number: tokens of a micro-batch, of a rank, or none at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from attune_lab.trainer.context import Context
from attune_lab.trainer.data import Batch
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.state import State
from attune_lab.trainer.weights import Spec
from experiments.faults.catalogue.registry import declare
from experiments.faults.workloads import WORKLOADS

Weigh = Callable[[Context, Tensor, float], float]
Count = Callable[[Sequence[Batch], State], tuple[float, float]]

GROUP = "loss-norm"
MICROBATCHES = WORKLOADS["dense"].microbatches
LAST_STEP = WORKLOADS["dense"].train_iters


def mean_of_means(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """Every micro-batch is divided by its own tokens and by their number: short sequences weigh too much."""
    return context.config.mbs / context.config.gbs / max(float(mask.sum()), 1.0)


declare(
    "F001",
    "Mean of micro-batch means, with lengths that differ",
    group=GROUP,
    source="huggingface/transformers#34191",
    patches={"loss.loss_weight": mean_of_means},
    workload="ragged",
)


def own_tokens(original: Count, batches: Sequence[Batch], state: State) -> tuple[float, float]:
    """Each rank divides by its own tokens and gradients are averaged: all ranks count as if they had as many."""
    alone = replace(state, mesh=replace(state.mesh, dp=Axis()))
    language, mtp = original(batches, alone)
    return language * state.mesh.dp.size, mtp * state.mesh.dp.size


declare(
    "F002a",
    "Each rank divides by its own tokens, then ranks are averaged",
    group=GROUP,
    source="huggingface/transformers#34242",
    patches={"step.token_totals": own_tokens},
    workload="ragged",
    layout={"dp": 2},
)


def averaged_again(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The loss is divided by the tokens of all ranks, and gradients are averaged over the ranks once more."""
    return original(context, mask, total) / context.mesh.dp.size


declare(
    "F002b",
    "Division by the tokens of all ranks, then an average over ranks",
    group=GROUP,
    source="huggingface/transformers#37474",
    patches={"loss.loss_weight": averaged_again},
    layout={"dp": 2},
)


def scaled_each_time(original: Callable[..., None], total: Tensor, grad: Tensor, spec: Spec) -> None:
    """The sum of gradients is divided by the number of micro-batches after each of them, not once at the end."""
    original(total, grad * MICROBATCHES, spec)
    total.div_(MICROBATCHES)


declare(
    "F003",
    "Accumulated gradients scaled at every micro-batch",
    group=GROUP,
    source="pytorch/torchtitan#1732",
    patches={"buckets.accumulate": scaled_each_time},
    layout={"pp": 2},
)


def not_divided(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The backward pass starts from the sum of the token losses; only the logged loss is a mean."""
    return 1.0


declare(
    "F004",
    "Backward pass of the summed loss",
    group=GROUP,
    source="pytorch/torchtitan#2972",
    patches={"loss.loss_weight": not_divided},
    layout={"pp": 2},
    note="Clipping and Adam undo the factor: the loss stays on its course.",
)


def times_cp(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The loss is multiplied by cp against an average over cp that does not happen."""
    return original(context, mask, total) * context.mesh.cp.size


declare(
    "F005",
    "Loss multiplied by cp",
    group=GROUP,
    source="NVIDIA/Megatron-LM#673",
    patches={"loss.loss_weight": times_cp},
    layout={"cp": 2},
)


def own_mtp_tokens(original: Count, batches: Sequence[Batch], state: State) -> tuple[float, float]:
    """The multi-token loss is divided by the rank's own tokens, then ranks are averaged."""
    return original(batches, state)[0], own_tokens(original, batches, state)[1]


declare(
    "F007",
    "Multi-token loss divided by the rank's own tokens",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7452",
    patches={"step.token_totals": own_mtp_tokens},
    workload="mtp",
    layout={"dp": 2},
    note="All sequences of the run are full, so its gradients are right; ragged lengths show the fault.",
)


def mtp_summed(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The multi-token loss is a sum over tokens instead of a mean."""
    return context.config.mtp_loss_scaling_factor


declare(
    "F008",
    "Multi-token loss summed, not averaged",
    group=GROUP,
    source="NVIDIA/Megatron-LM#1532",
    patches={"model.mtp_weight": mtp_summed},
    workload="mtp",
)


def half_a_window(original: Callable[[State], int], state: State) -> int:
    """The epoch ends in the middle of the last step."""
    return original(state) // (2 if state.step + 1 == LAST_STEP else 1)


def of_a_whole_window(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The divisor stays that of a full accumulation window, whatever is left of the epoch."""
    return original(context, mask, total) / (2 if context.step == LAST_STEP else 1)


declare(
    "F009",
    "Last, partial accumulation window divided as a full one",
    group=GROUP,
    source="ml-explore/mlx-lm#1413",
    patches={"step.microbatches": half_a_window, "loss.loss_weight": of_a_whole_window},
)


def by_shard(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """Each context-parallel rank divides by the tokens of its part of the sequence, then ranks are averaged."""
    own = float(mask[:, context.own].sum())
    return original(context, mask, total) * float(mask.sum()) / context.mesh.cp.size / max(own, 1.0)


declare(
    "F061",
    "Masked loss divided by the tokens of the cp shard",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7513",
    patches={"loss.loss_weight": by_shard},
    workload="ragged",
    layout={"cp": 2},
)


def main_tokens(original: Weigh, context: Context, mask: Tensor, total: float) -> float:
    """The multi-token loss is divided by the tokens of the main loss, which are more by one a document."""
    return original(context, mask, total) * float(mask.sum()) / max(float(context.batch.mask.sum()), 1.0)


declare(
    "F124",
    "Multi-token loss divided by the tokens of the main loss",
    group=GROUP,
    source="NVIDIA/Megatron-LM#3159",
    patches={"model.mtp_weight": main_tokens},
    workload="mtp",
    note="1 token in 64 here; 1 in 4,096 in the report (0.024 %).",
)
