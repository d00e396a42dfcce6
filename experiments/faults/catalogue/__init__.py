"""Every fault of the suite, by name; the modules hold those of one kind each."""

from __future__ import annotations

from experiments.faults.catalogue import (
    auxiliary_losses,
    masks_and_labels,
    model,
    precision,
    routing,
    updates,
    weights_and_races,
)
from experiments.faults.catalogue.registry import FAULTS

__all__ = [
    "FAULTS",
    "auxiliary_losses",
    "masks_and_labels",
    "model",
    "precision",
    "routing",
    "updates",
    "weights_and_races",
]
