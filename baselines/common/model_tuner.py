"""The loop around a library's sampler: start-up, legality, repeats and failures, the same for every sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Estimate, Proposal, RunReport, TuningTask
from attune_lab.recipe import Recipe
from baselines.common.history import History, Trial
from baselines.common.outcomes import Outcome, outcome
from baselines.common.points import Point, Points
from baselines.common.proposals import propose

MAX_DRAWS = 1000
"""Legal draws in a row that may all be known already before the space counts as exhausted."""


class Sampler(Protocol):
    """A library's sampler over named parameters; it knows nothing of recipes."""

    def ask(self) -> Point | None:
        """A point to try, None when there is none left. One that is never told is forgotten at the next `ask`."""
        ...

    def tell(self, point: Point, result: Outcome) -> None:
        """The outcome of a point, asked for or not."""
        ...


class Copy(Protocol):
    """Somewhere else that hears of every new trial."""

    def add(self, point: Point, result: Outcome) -> None:
        """File a trial."""
        ...


@dataclass(frozen=True)
class Habits:
    """How a `ModelTuner` goes about it.

    Attributes:
        startup: trials told before the sampler is asked, the baseline's own among them.
        asks: suggestions in a row that may be illegal or known; a sampler that is dear to ask gets few.
    """

    startup: int = 8
    asks: int = 50


class ModelTuner:
    """Asks a sampler, and sees to it that what is proposed is legal and new.

    * **Warm start.** The sampler is told the baseline's own runs first. Then come a few one-lever neighbours of the
      baseline and uniform draws of legal recipes.
    * **Legality.** An illegal suggestion costs nothing and is asked for anew. After ``asks`` suggestions in a row
      without a legal new recipe, the legal recipe nearest to the last one is taken; if that is known, a uniform draw.
    * **Repeats.** The known outcome of a repeated suggestion is told to the sampler again, for free.
    * **Failures.** Out of memory, timeout and crash are told with the worst value so far and a violated limit
      (`outcome`). What the infrastructure broke is not told at all, and proposed once more.
    """

    def __init__(
        self, task: TuningTask, points: Points, sampler: Sampler, habits: Habits, copy: Copy | None = None
    ) -> None:
        self._task, self._points, self._sampler = task, points, sampler
        self._habits, self._copy = habits, copy
        self._rng = np.random.default_rng(task.seed)
        self._history = History()
        self._estimates: dict[str, Estimate] = {}
        self._queue: list[tuple[Recipe, str]] = []
        self._told = 0
        self._started = False
        self._next: Proposal | None = None
        self.stop_reason = ""

    def ask(self) -> Proposal | None:
        """The next proposal, or None when nothing legal and new is left."""
        if not self._started:
            self._start()
        if self._next is None:
            self._next = self._choose()
        return self._next

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """File the report and let the sampler know; the baseline's own runs are told as one when the search starts."""
        trial = self._history.record(proposal.recipe, report)
        if self._next is not None and self._next.recipe.digest == proposal.recipe.digest:
            self._next = None
        if report.status in INFRASTRUCTURE_FAULTS:
            if self._started and not self._history.known(proposal.recipe):
                self._queue.insert(0, (proposal.recipe, "again, as the infrastructure failed"))
        elif self._started:
            self._file(trial)

    def _start(self) -> None:
        self._started = True
        for trial in self._history:
            if trial.reports:
                self._file(trial)
        reason = "start-up: one lever away from the recipe"
        self._queue += [(recipe, reason) for recipe in self._neighbours((self._habits.startup - 1) // 2)]

    def _neighbours(self, count: int) -> Sequence[Recipe]:
        """Legal recipes one lever away from the baseline, each of another parameter, in random order."""
        space, baseline = self._task.space, self._task.baseline
        found: list[Recipe] = []
        for key in self._rng.permutation(list(self._points.choices)).tolist():
            values = space.neighbours(baseline, key)
            recipe = space.apply(baseline, {key: values[int(self._rng.integers(len(values)))]})
            if len(found) < count and recipe.digest != baseline.digest and not space.problems(recipe):
                found.append(recipe)
        return found

    def _file(self, trial: Trial) -> None:
        """Tell a trial to the sampler, and to the copy."""
        point, result = self._points.point(trial.recipe), self._outcome(trial)
        self._sampler.tell(point, result)
        if self._copy is not None:
            self._copy.add(point, result)
        self._told += 1

    def _outcome(self, trial: Trial) -> Outcome:
        return outcome(self._history, trial, self._estimate(trial.recipe), self._task.cluster.n_gpus)

    def _estimate(self, recipe: Recipe) -> Estimate:
        if recipe.digest not in self._estimates:
            self._estimates[recipe.digest] = self._task.cost_model.estimate([recipe])[0]
        return self._estimates[recipe.digest]

    def _choose(self) -> Proposal | None:
        while self._queue:
            recipe, reason = self._queue.pop(0)
            if not self._history.known(recipe):
                return self._proposal(recipe, reason)
        if self._told < self._habits.startup:
            return self._drawn("start-up: uniform draw from the legal space")
        return self._suggested()

    def _suggested(self) -> Proposal | None:
        """The sampler's next suggestion that is legal and new."""
        point: Point = {}
        for _ in range(self._habits.asks):
            suggestion = self._sampler.ask()
            if suggestion is None:
                self.stop_reason = "the sampler has suggested every point it has"
                return None
            point = suggestion
            recipe = self._points.recipe(point)
            if recipe is None:
                continue
            if not self._history.known(recipe):
                return self._proposal(recipe, f"suggested by {self._sampler}")
            known = self._history.get(recipe)
            if known is not None and known.reports:
                self._sampler.tell(self._points.point(recipe), self._outcome(known))
        recipe = self._points.nearest(point)
        if recipe is not None and not self._history.known(recipe):
            return self._proposal(recipe, f"the legal recipe nearest to what {self._sampler} suggested")
        return self._drawn(f"uniform draw from the legal space, as {self._sampler} suggested nothing new")

    def _drawn(self, reason: str) -> Proposal | None:
        for _ in range(MAX_DRAWS):
            recipe = self._task.space.sample(self._rng)
            if not self._history.known(recipe):
                return self._proposal(recipe, reason)
        self.stop_reason = f"{MAX_DRAWS} legal draws in a row were all known"
        return None

    def _proposal(self, recipe: Recipe, reason: str) -> Proposal:
        return propose(self._task, recipe, reason, self._estimate(recipe))
