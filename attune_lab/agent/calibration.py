"""What this campaign teaches about the cost model: by how much it is off, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attune_lab.agent.history import History
from attune_lab.contracts import Estimate
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

Floats = NDArray[np.float64]

OFFSET_SD = 0.5
"""Prior spread of the error all recipes of a campaign share (log step time): the model may be off as a whole."""
ERROR_SD = 0.10
"""Prior spread of the error that depends on the settings: analytic models of training are good to about 10 %."""
LAYOUT_SCALE = 8.0
FLAG_SCALE = 16.0
"""Distance, in doublings or switched flags, over which errors lose their likeness. One doubling of a parallel size
then leaves an error of about 5 % (log) unknown, one flag about 3.5 %."""

MEMORY_SD = 0.02
"""Spread of measured around corrected predicted peak memory: routing, fragmentation and allocator rounding."""


class Calibration:
    """Gaussian process over log(measured / predicted step time) of the trials of a campaign.

    **Source:** Rasmussen & Williams, Gaussian Processes for Machine Learning, eq. 2.25-2.26.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._keys = tuple(space.parameters)
        self._scales = np.array([LAYOUT_SCALE if key in LAYOUT else FLAG_SCALE for key in self._keys])
        self._is_size = np.array([key in LAYOUT for key in self._keys])
        self._points: Floats = np.empty((0, len(self._keys)))
        self._codes: dict[tuple[str, Value], int] = {}
        self._inverse: Floats = np.empty((0, 0))
        self._weights: Floats = np.empty(0)

    def fit(self, history: History, *, noise_sd: float) -> None:
        """Take in all measured trials. ``noise_sd``: spread of one run's log step time."""
        measured = [trial for trial in history if trial.step_time_s and trial.estimate.step_time_s > 0]
        self._points = self._coordinates([trial.recipe for trial in measured])
        residuals = np.array([math.log((t.step_time_s or 0.0) / t.estimate.step_time_s) for t in measured])
        noise = np.array([noise_sd**2 / len(trial.ok) for trial in measured])
        covariance = self._covariance(self._points, self._points) + np.diag(noise + 1e-10)
        self._inverse = np.asarray(np.linalg.inv(covariance))
        self._weights = self._inverse @ residuals

    def error(self, recipes: Sequence[Recipe]) -> tuple[Floats, Floats]:
        """Expected log(measured / predicted) and its standard deviation, shapes (len(recipes),)."""
        cross = self._covariance(self._coordinates(recipes), self._points)
        variance = OFFSET_SD**2 + ERROR_SD**2 - np.einsum("ij,jk,ik->i", cross, self._inverse, cross)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, a: Floats, b: Floats) -> Floats:
        apart = np.abs(a[:, None, :] - b[None, :, :])
        distance = np.where(self._is_size, apart, apart > 0) @ (1.0 / self._scales)
        covariance: Floats = OFFSET_SD**2 + ERROR_SD**2 * np.exp(-distance)
        return covariance

    def _coordinates(self, recipes: Sequence[Recipe]) -> Floats:
        values = [self._space.values(recipe) for recipe in recipes]
        rows = [[self._coordinate(key, row[key]) for key in self._keys] for row in values]
        points: Floats = np.array(rows, dtype=np.float64).reshape(len(recipes), len(self._keys))
        return points

    def _coordinate(self, key: str, value: Value) -> float:
        """Parallel sizes on a log2 axis (unset counts as 1); other values as a code, equal for equal values."""
        if key in LAYOUT:
            return math.log2(value) if isinstance(value, int) and value else 0.0
        return float(self._codes.setdefault((key, value), len(self._codes)))


class MemoryCheck:
    """Whether a predicted peak fits, corrected by the predictions that were wrong so far."""

    def __init__(self) -> None:
        self.margin = 0.0

    def fit(self, history: History) -> None:
        """Learn the margin from measured peaks and from runs that ran out of memory."""
        ratios, ceiling = [], math.inf
        for trial in history:
            predicted, capacity = trial.estimate.peak_memory_bytes, trial.estimate.memory_capacity_bytes
            if trial.peak_memory_bytes and predicted > 0:
                ratios.append(predicted / trial.peak_memory_bytes)
            elif any(report.status == "oom" for report in trial.reports):
                ceiling = min(ceiling, predicted / capacity)
        typical = float(np.median(ratios)) if ratios else 1.0
        self.margin = min(typical, ceiling) - 1.0

    def fits(self, estimate: Estimate) -> bool:
        """Whether the predicted peak is below capacity * (1 + margin)."""
        return estimate.peak_memory_bytes < estimate.memory_capacity_bytes * (1.0 + self.margin)

    def chance(self, estimate: Estimate) -> float:
        """Probability that the run does not run out of memory."""
        room = 1.0 + self.margin - estimate.peak_memory_bytes / estimate.memory_capacity_bytes
        return normal_cdf(room / MEMORY_SD)


def normal_cdf(z: float) -> float:
    """Standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def expected_improvement(mean: float, sd: float) -> float:
    """E[max(0, G)] of a gain G ~ N(mean, sd).

    **Source:** Jones, Schonlau & Welch 1998, Efficient Global Optimization of Expensive Black-Box Functions, eq. 15.
    """
    if sd <= 0.0:
        return max(mean, 0.0)
    z = mean / sd
    return mean * normal_cdf(z) + sd * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
