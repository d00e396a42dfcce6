"""Faults within the model: attention, dropout, initial weights, and gradients that never come."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attune_lab.trainer import communication as comm
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.model import Layer
from attune_lab.trainer.weights import Spec
from experiments.faults.catalogue.registry import declare


def gradients_of_others_lost(original: Callable[..., Tensor], x: Tensor, cp: Axis) -> Tensor:
    """The backward pass of ring attention forgets what other ranks' queries say of this rank's keys and values."""
    parts = list(comm.all_gather(x, cp).chunk(cp.size))
    parts[cp.rank] = x
    return torch.cat(parts)


def another_softmax_scale(original: Callable[[int], float], head: int) -> float:
    """The scores are scaled with the wrong one of two factors of a long-context model."""
    return 1.2 * original(head)


def default_rotary_base(
    original: Callable[..., tuple[Tensor, Tensor]], positions: Tensor, config: TrainerConfig
) -> tuple[Tensor, Tensor]:
    """The base of the rotary embedding is lost on the way to the model, whose default is 10,000."""
    return original(positions, config.model_copy(update={"rotary_base": 10_000.0}))


def same_mask_on_tp_ranks(
    original: Callable[..., Tensor], context: Context, layer: str, branch: int, sequence: int
) -> Tensor:
    """Every tensor-parallel rank draws the mask of its share of the sequence from the same seed."""
    mask, rows = original(context, layer, branch, sequence).clone(), context.rows
    mask[rows] = mask[context.own[: len(rows)]]
    return mask


def same_mask_on_dp_ranks(original: Callable[..., tuple[int, ...]], context: Context, sequence: int) -> tuple[int, ...]:
    """Data-parallel ranks, which read other sequences, draw the same masks."""
    return context.config.seed, context.step, context.microbatch * context.config.mbs + sequence


def another_seed(original: Callable[[Spec, int], Tensor], spec: Spec, seed: int) -> Tensor:
    """Weights are drawn from a seed that depends on the layout."""
    return original(spec, seed + 100)


def layer_without_gradients(original: Callable[..., Tensor], layer: nn.Module, x: Tensor, context: Context) -> Tensor:
    """The first layer is recomputed from an input that takes no gradient, so its weights get none."""
    assert isinstance(layer, Layer)
    out = original(layer, x, context)
    return x + (out - x).detach() if layer.name == "layers.0" else out


def trunk_not_taught(original: Callable[[Tensor], Tensor], trunk: Tensor) -> Tensor:
    """Hidden states reach the recomputed multi-token module as a keyword, which takes no gradient: the trunk gets
    none of its loss."""
    return trunk.detach()


def weight_dropped(original: Callable[..., float], context: Context, mask: Tensor, total: float) -> float:
    """The multi-token loss is logged, but its weight is lost."""
    return 0.0


declare(
    "F038",
    "Backward pass of context-parallel attention",
    group="attention",
    source="NVIDIA/Megatron-LM#1464",
    patches={"attention.whole_sequence": gradients_of_others_lost},
    layout={"cp": 2},
)
declare(
    "F075",
    "Softmax scaled by the wrong factor",
    group="attention",
    source="NVIDIA/Megatron-LM@62f0a9737d",
    patches={"attention.softmax_scale": another_softmax_scale},
)
declare(
    "F076",
    "Base of the rotary embedding lost",
    group="attention",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    patches={"context.rotary": default_rotary_base},
    workload="long",
)
declare(
    "F098",
    "Same dropout mask on tensor-parallel ranks",
    group="rng",
    source="InternLM/InternLM#405",
    patches={"model.keep_mask": same_mask_on_tp_ranks},
    workload="dropout",
    layout={"tp": 2, "sequence_parallel": True},
)
declare(
    "F101",
    "Initial weights depend on the layout",
    group="init",
    source="pytorch/torchtitan@b5bcd76c docs/converging.md",
    patches={"weights.initial": another_seed},
    layout={"dp": 2},
    note="Of runs that draw their weights; those that start from one checkpoint cannot have it.",
)
declare(
    "F106",
    "A recomputed layer gets no gradients",
    group="missing-grad",
    source="NVIDIA/Megatron-LM#4433",
    patches={"model.layer_output": layer_without_gradients},
    layout={"recompute_granularity": "full"},
)
declare(
    "F110",
    "Weight of the multi-token loss lost",
    group="objective",
    source="NVIDIA/Megatron-LM#3965",
    patches={"model.mtp_weight": weight_dropped},
    workload="mtp",
)
declare(
    "F116",
    "Same dropout masks on data-parallel ranks",
    group="rng",
    source="tenstorrent/tt-metal#55947",
    patches={"model.dropout_seed": same_mask_on_dp_ranks},
    workload="dropout",
    layout={"dp": 2},
)
declare(
    "F118",
    "Recomputed multi-token module teaches the trunk nothing",
    group="missing-grad",
    source="NVIDIA/Megatron-LM#4765",
    patches={"model.mtp_trunk": trunk_not_taught},
    workload="mtp",
    layout={"recompute_granularity": "full"},
)
