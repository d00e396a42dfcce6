"""A training curve as the gate sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from attune_lab.contracts import RunReport

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Loss and gradient norms of one run, step by step. Arrays have shape (T,) for T recorded steps.

    Attributes:
        steps: strictly increasing optimizer steps, the first step of training being 1.
        loss: language-model loss; not finite where the run diverged.
        quantum: distance between neighbouring printable losses (0 where the value was not printed).
        norms: ``grad_norm``, ``grad_norm.GROUP``, ``update_norm`` -> values, nan where not recorded.
        norm_quanta: the quantum of each printed norm; a norm that was not printed has none.
        clock: what the file says of dates and step times, one text per step, empty where it says nothing.
    """

    steps: Ints
    loss: Floats
    quantum: Floats
    norms: Mapping[str, Floats] = field(default_factory=dict)
    norm_quanta: Mapping[str, Floats] = field(default_factory=dict)
    clock: tuple[str, ...] = ()

    @classmethod
    def from_report(cls, report: RunReport) -> Curve:
        """The curve of a run's report; its steps count from 1."""
        loss = np.asarray(report.loss, dtype=np.float64)
        norm = np.asarray(report.grad_norm, dtype=np.float64)
        norms = {"grad_norm": norm} if norm.size and norm.size == loss.size else {}
        return cls(np.arange(1, loss.size + 1), loss, np.zeros(loss.size), norms)

    def at(self, steps: Ints) -> Curve:
        """The curve at some of its own steps."""
        index = np.searchsorted(self.steps, steps)
        norms = {name: values[index] for name, values in self.norms.items()}
        quanta = {name: values[index] for name, values in self.norm_quanta.items()}
        clock = tuple(self.clock[i] for i in index) if self.clock else ()
        return Curve(self.steps[index], self.loss[index], self.quantum[index], norms, quanta, clock)


NOT_RUN = Curve(np.array([], dtype=np.int64), np.array([]), np.array([]))
"""The curve of a recipe that nobody has run."""
