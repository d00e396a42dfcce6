"""The cost model as the model-based tuners here use it: in batches, with a memory, and corrected for memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attune_lab.contracts import Estimate, TuningTask
from attune_lab.recipe import Recipe
from baselines.common.history import History


class Pricing:
    """Estimates of recipes, each asked of the cost model once.

    Measured peaks correct the predicted ones by one factor, the geometric mean of measured over predicted peak. Left
    alone, a bias of the cost model would make every layout at the edge of memory fail, or none be tried.
    """

    def __init__(self, task: TuningTask, history: History) -> None:
        self._task, self._history = task, history
        self._known: dict[str, Estimate] = {}

    def of(self, recipes: Sequence[Recipe]) -> list[Estimate]:
        """Estimates in the order asked."""
        new = {recipe.digest: recipe for recipe in recipes if recipe.digest not in self._known}
        if new:
            self._known |= zip(new, self._task.cost_model.estimate(list(new.values())), strict=True)
        return [self._known[recipe.digest] for recipe in recipes]

    def memory_factor(self) -> float:
        """Measured over predicted peak memory, geometric mean over the recipes that ran; 1 before any has."""
        ran = [trial for trial in self._history.feasible if trial.peak_memory_bytes]
        pairs = zip(ran, self.of([trial.recipe for trial in ran]), strict=True)
        logs = [
            math.log((trial.peak_memory_bytes or 0.0) / estimate.peak_memory_bytes)
            for trial, estimate in pairs
            if estimate.peak_memory_bytes > 0
        ]
        return math.exp(statistics.fmean(logs)) if logs else 1.0

    def fits(self, estimates: Sequence[Estimate], *, margin: float = 0.0) -> list[bool]:
        """Whether each is expected to start and to leave the share ``margin`` of the memory free (negative: lack)."""
        factor = self.memory_factor()
        return [
            not one.problems and factor * one.peak_memory_bytes <= (1 - margin) * one.memory_capacity_bytes
            for one in estimates
        ]
