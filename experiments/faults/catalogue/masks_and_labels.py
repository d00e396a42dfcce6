"""Faults of what a token may see and what it is to predict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context
from attune_lab.trainer.data import Batch, Row
from attune_lab.trainer.language import PADDING
from attune_lab.trainer.mesh import Axis
from experiments.faults.catalogue.registry import declare

Mask = NDArray[np.float32]


def gathered_logits(original: Callable[..., Tensor], logits: Tensor, labels: Tensor, tp: Axis) -> Tensor:
    """All ranks pass the logits of the whole vocabulary to a loss that takes them for shards of it."""
    whole = comm.gather(logits.movedim(-1, 0).contiguous(), tp).movedim(0, -1)
    return original(whole, labels, tp)


def last_tokens_lost(
    original: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, context: Context
) -> Tensor:
    """Lengths of documents are rounded down to a multiple of 2 cp: attention gives 0 for the tokens beyond."""
    batch = context.batch
    lengths = (batch.documents[:, :, None] == batch.documents[:, None, :]).sum(-1)
    lost = batch.positions >= lengths - lengths % (2 * context.mesh.cp.size)
    mixed = original(query, key, value, sink, context)
    return mixed.masked_fill(lost[:, context.own].T[..., None, None], 0.0)


def across_documents(original: Callable[..., Tensor], queries: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
    """Attention does not know the borders of packed documents."""
    return original(queries, keys, torch.zeros_like(documents))


def not_causal(original: Callable[..., Tensor], queries: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
    """Tokens look at the tokens after them."""
    return (documents[:, queries, None] == documents[:, None, keys])[:, None]


def shifted_twice(original: Callable[[Row], Row], text: Row) -> Row:
    """Labels that were shifted already are shifted again: the label is the token after the next."""
    return np.append(original(text)[1:], PADDING)


def not_shifted(original: Callable[[Row], Row], text: Row) -> Row:
    """The label of a token is the token itself."""
    return text[:-1]


def mask_ignored(original: Callable[[Row, int], Mask], documents: Row, length: int) -> Mask:
    """Padding is trained on."""
    return np.ones(len(documents) - 1, dtype=np.float32)


def mask_rolled(original: Callable[[Row, int], Mask], documents: Row, length: int) -> Mask:
    """The loss mask is off by one token."""
    return np.roll(original(documents, length), 1)


def positions_not_reset(original: Callable[[Row], Row], documents: Row) -> Row:
    """Positions go on from one packed document to the next."""
    return np.arange(len(documents))


def borders_trained_on(original: Callable[[Row, int], Mask], documents: Row, length: int) -> Mask:
    """The first token of a document is a label of the one before."""
    return original(np.zeros_like(documents), length)


def contiguous_positions(original: Callable[..., Tensor], batch: Batch, own: Tensor, cp: Axis) -> Tensor:
    """Position ids are cut in runs over the context-parallel ranks, where tokens are dealt out in mirrored chunks."""
    return batch.positions.chunk(cp.size, 1)[cp.rank].T


declare(
    "F036",
    "Vocabulary-parallel loss of gathered logits",
    group="loss-def",
    source="NVIDIA/Megatron-LM#7452",
    patches={"loss.cross_entropy": gathered_logits},
    layout={"tp": 2},
)
declare(
    "F037",
    "Last tokens of packed documents lost in attention",
    group="mask",
    source="NVIDIA/TransformerEngine#1930",
    patches={"attention.over_context": last_tokens_lost},
    workload="packed",
    layout={"cp": 2},
)
declare(
    "F040",
    "Packed documents attend to each other",
    group="mask",
    source="NVIDIA-NeMo/Automodel#2999",
    patches={"context.visible": across_documents},
    workload="packed",
)
declare(
    "F077",
    "Tokens attend to the future",
    group="mask",
    source="huggingface/transformers#48745",
    patches={"context.visible": not_causal},
)
declare(
    "F078",
    "Labels shifted twice",
    group="loss-def",
    source="huggingface/transformers#47394",
    patches={"data.shift_labels": shifted_twice},
)
declare(
    "F079",
    "Labels not shifted",
    group="loss-def",
    source="Project-MONAI/GenerativeModels#314",
    patches={"data.shift_labels": not_shifted},
)
declare(
    "F080a",
    "Loss mask ignored",
    group="loss-def",
    source="NVIDIA/Model-Optimizer#441",
    patches={"data.loss_mask": mask_ignored},
    workload="ragged",
)
declare(
    "F080b",
    "Loss mask off by one",
    group="loss-def",
    source="NVIDIA/Model-Optimizer#441",
    patches={"data.loss_mask": mask_rolled},
    workload="ragged",
)
declare(
    "F081a",
    "Position ids not reset between documents",
    group="objective",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    patches={"data.position_ids": positions_not_reset},
    workload="packed",
    note="Harmless here but for rounding: rotary positions count by distance and documents are apart in attention.",
)
declare(
    "F081b",
    "Ends of documents trained on",
    group="objective",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    patches={"data.loss_mask": borders_trained_on},
    workload="packed",
)
declare(
    "F115",
    "Position ids not partitioned as the tokens",
    group="mask",
    source="modelscope/ms-swift#5683",
    patches={"context.positions_of": contiguous_positions},
    layout={"cp": 2},
)
