"""Every fault of the suite, by name; the modules hold those of one kind each."""

from __future__ import annotations

from experiments.faults.catalogue import (
    batches,
    clip_norm,
    grad_scale,
    loss_norm,
    missing_reduce,
    tied_embedding,
)
from experiments.faults.catalogue.registry import FAULTS

__all__ = [
    "FAULTS",
    "batches",
    "clip_norm",
    "grad_scale",
    "loss_norm",
    "missing_reduce",
    "tied_embedding",
]
