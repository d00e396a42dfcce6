"""What a planner knows in the middle of a campaign: prices, outcomes, how full memory will be, what to leave alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, RunReport, TuningTask, UserError
from attune_lab.recipe import Recipe
from baselines.common.causes import Causes
from baselines.common.history import History, Trial
from baselines.common.improvement import expected_improvement
from baselines.common.offsets import MEMORY_LEVELS, TIME_LEVELS, Floats, Offsets
from baselines.common.pricelist import OVERFULL, ROOM, Priced, PriceList

OWN_ERROR, OWN_MEMORY = 0.01, 0.015
"""Spread of a recipe's own log error in time and in peak memory, its measurement included."""

BREAKDOWNS = frozenset({"crash", "hang", "diverged"})
"""Endings that a recipe is likely to be the cause of."""

MAX_DRAWS = 200
"""Random recipes drawn when everything priced has been tried."""


class Knowledge:
    """Everything told so far, held against the cost model.

    Attributes:
        prices: all recipes priced so far.
        history: what was told.
        task: the task it is about.
    """

    def __init__(self, task: TuningTask, prices: PriceList) -> None:
        self.task, self.prices, self.history = task, prices, History()
        self._refusals, self._breakdowns = Causes(), Causes()
        self._memory = Offsets(MEMORY_LEVELS, OWN_MEMORY, slow_nodes=False)
        self._time = Offsets(TIME_LEVELS, OWN_ERROR)
        self._rng = np.random.default_rng(task.seed)
        self._refit()

    def tell(self, recipe: Recipe, report: RunReport) -> None:
        """Take in one report; what the infrastructure did is not held against the recipe."""
        self.history.record(recipe, report)
        for one in self.prices.price([recipe]):
            if report.status == "invalid":
                self._refusals.failed(report.message, one)
            elif report.status not in INFRASTRUCTURE_FAULTS:
                self._refusals.survived(one)
            if report.status in BREAKDOWNS:
                self._breakdowns.failed(report.status, one)
            elif report.status == "ok":
                self._breakdowns.survived(one)
        self._refit()

    @property
    def measured(self) -> list[tuple[Priced, Trial]]:
        """What ran to the end, with its price; recipes without one are left out."""
        trials = self.history.feasible
        return [(one, trial) for trial in trials for one in self.prices.price([trial.recipe])]

    @property
    def best(self) -> Priced | None:
        """The fastest recipe measured; None before there is one."""
        return min(self.measured, key=lambda pair: pair[1].step_time_s or math.inf, default=(None,))[0]

    def seconds(self, points: Sequence[Priced]) -> tuple[Floats, Floats]:
        """Step times expected by the cost model and what was measured so far, and their relative spread."""
        offset, spread = self._time.predict(points)
        return np.array([one.estimate.step_time_s for one in points]) * np.exp(offset), spread

    def filled(self, points: Sequence[Priced]) -> Floats:
        """Share of the memory that each recipe is expected to fill, by the cost model and what was measured so far."""
        offset, _ = self._memory.predict(points)
        return np.array([one.fill for one in points]) * np.exp(offset)

    def fits(self, points: Sequence[Priced]) -> Floats:
        """Probability of each recipe not to run out of memory."""
        offset, spread = self._memory.predict(points)
        room = -np.log([one.fill for one in points]) - offset
        return np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in room / spread])

    def sound(self, points: Sequence[Priced]) -> Floats:
        """Probability of each recipe not to be refused or to fail for a reason met so far, memory aside."""
        return self._breakdowns.chance(points) * self._refusals.chance(points)

    def runs(self, points: Sequence[Priced]) -> Floats:
        """Probability of each recipe to run to the end: it fits and is `sound`."""
        return self.fits(points) * self.sound(points)

    def hope(self, points: Sequence[Priced]) -> Floats:
        """Expected improvement of each recipe on the best step measured, as a share of it, times its chance to run."""
        return self.improvement(*self.seconds(points)) * self.runs(points)

    def improvement(self, seconds: Floats, spread: Floats) -> Floats:
        """The improvement expected of step times with this relative spread."""
        best_s = self.history.best_s
        to_beat = best_s if math.isfinite(best_s) else seconds.min(initial=math.inf)
        return expected_improvement(np.log(to_beat / seconds), spread)

    def crowding(self, points: Sequence[Priced]) -> Floats:
        """Factor on the seconds of each recipe when good ones are looked for: above 1 where memory is expected to be
        over-full (see `OVERFULL`).
        """
        return 1.0 + OVERFULL * np.maximum(self.filled(points) - ROOM, 0.0)

    def first_open(self, points: Iterable[Priced]) -> Priced | None:
        """The first of ``points`` that is new and legal."""
        return next((p for p in points if not self.history.known(p.recipe) and self.prices.is_legal(p)), None)

    def draw(self) -> Recipe | None:
        """A random legal recipe that has not been tried; None when none is found."""
        for _ in range(MAX_DRAWS):
            try:
                recipe = self.task.space.sample(self._rng)
            except UserError:
                return None
            if not self.history.known(recipe):
                return recipe
        return None

    def _refit(self) -> None:
        pairs = self.measured
        ratios = [math.log((trial.step_time_s or 0.0) / one.estimate.step_time_s) for one, trial in pairs]
        self._time.fit([one for one, _ in pairs], ratios)
        self._refit_memory()

    def _refit_memory(self) -> None:
        """Measured peaks first; then what ran out of memory, as far over the edge as the peaks let expect."""
        ran = [(one, trial.peak_memory_bytes) for one, trial in self.measured if trial.peak_memory_bytes]
        points = [one for one, _ in ran]
        errors = [math.log(peak / one.estimate.peak_memory_bytes) for one, peak in ran]
        self._memory.fit(points, errors)
        full = [one for trial in self.history if trial.status == "oom" for one in self.prices.price([trial.recipe])]
        if full:
            expected, spread = self._memory.predict(full)
            beyond = np.maximum(-np.log([one.fill for one in full]), expected) + 0.5 * spread
            self._memory.fit(points + full, [*errors, *beyond])
