"""Faults of what a token may see and what it is to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def _declare(name: str, title: str, source: str, point: str, patch: Callable[..., Any], **settings: Any) -> None:
    declare(name, title, source=source, patches={point: patch}, **{"group": "mask"} | settings)


_declare(
    "F036", "vocabulary-parallel loss of gathered logits", "NVIDIA/Megatron-LM#7452",
    "loss.cross_entropy", gathered_logits, group="loss-def", layout={"tp": 2},
)  # fmt: skip
_declare(
    "F037", "last tokens of packed documents lost in attention", "NVIDIA/TransformerEngine#1930",
    "attention.over_context", last_tokens_lost, workload="packed", layout={"cp": 2},
)  # fmt: skip
_declare(
    "F040", "packed documents attend to each other", "NVIDIA-NeMo/Automodel#2999",
    "context.visible", across_documents, workload="packed",
)  # fmt: skip
_declare("F077", "tokens attend to the future", "huggingface/transformers#48745", "context.visible", not_causal)
_declare(
    "F078", "labels shifted twice", "huggingface/transformers#47394",
    "data.shift_labels", shifted_twice, group="loss-def",
)  # fmt: skip
_declare(
    "F079", "labels not shifted", "Project-MONAI/GenerativeModels#314",
    "data.shift_labels", not_shifted, group="loss-def",
)  # fmt: skip
_declare(
    "F080a", "loss mask ignored", "NVIDIA/Model-Optimizer#441",
    "data.loss_mask", mask_ignored, group="loss-def", workload="ragged",
)  # fmt: skip
_declare(
    "F080b", "loss mask off by one", "NVIDIA/Model-Optimizer#441",
    "data.loss_mask", mask_rolled, group="loss-def", workload="ragged",
)  # fmt: skip
_declare(
    "F081a", "position ids not reset between documents", "NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    "data.position_ids", positions_not_reset, group="objective", workload="packed",
    note="Harmless here but for rounding: rotary positions count by distance and documents are apart in attention.",
)  # fmt: skip
_declare(
    "F081b", "ends of documents trained on", "NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    "data.loss_mask", borders_trained_on, group="objective", workload="packed",
)  # fmt: skip
_declare(
    "F115", "position ids not partitioned as the tokens", "modelscope/ms-swift#5683",
    "context.positions_of", contiguous_positions, layout={"cp": 2},
)  # fmt: skip
