"""Every fault of the suite, by name; the modules hold those of one kind each."""

from __future__ import annotations

from experiments.faults.catalogue import (
    auxiliary_losses,
    batches,
    clip_norm,
    grad_scale,
    loss_norm,
    masks_and_labels,
    missing_reduce,
    model,
    precision,
    routing,
    tied_embedding,
    updates,
    weights_and_races,
)
from experiments.faults.catalogue.registry import FAULTS

__all__ = [
    "FAULTS",
    "auxiliary_losses",
    "batches",
    "clip_norm",
    "grad_scale",
    "loss_norm",
    "masks_and_labels",
    "missing_reduce",
    "model",
    "precision",
    "routing",
    "tied_embedding",
    "updates",
    "weights_and_races",
]
