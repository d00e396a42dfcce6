"""Every fault of the suite, by name; the modules hold those of one kind each."""

from __future__ import annotations

from experiments.faults.catalogue.registry import FAULTS

__all__ = ["FAULTS"]
