"""What a draft promises, priced as the catalog policy prices its own candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attune_lab.agent.calibration import Calibration
from attune_lab.agent.coordinates import Coordinates
from attune_lab.agent.history import History, Trial
from attune_lab.agent.policy import Appraiser, Candidate, Situation
from attune_lab.agent.prices import Prices
from attune_lab.agent.rules import Rulebook
from attune_lab.agent.stopping import StopRule
from attune_lab.agent.suspects import Suspects
from attune_lab.contracts import TuningTask
from attune_lab.diagnosis import diagnose
from attune_lab.lessons.catalog import Lesson
from attune_lab.recipe import Recipe
from attune_lab.recipe.effective import effective


class Odds:
    """The cost model as corrected by the runs of this campaign."""

    def __init__(self, task: TuningTask, rules: Rulebook, history: History) -> None:
        self._task, self._history = task, history
        self._prices, coordinates = Prices(task.space, task.cost_model), Coordinates(task.space)
        self._appraiser = Appraiser(self._prices, coordinates, rules)
        self._calibration = Calibration(coordinates)

    def learn(self, noise_sd: float) -> None:
        """Take in what the history holds. ``noise_sd``: spread of one run's log step time."""
        self._calibration.fit(self._history, noise_sd=noise_sd)

    def fits(self, recipe: Recipe) -> bool:
        """Whether a recipe is expected to fit into memory."""
        return self._calibration.fits(self._prices.of(recipe))

    def chance(self, recipe: Recipe, lesson: Lesson | None, best: Trial, band: float) -> float | None:
        """Probability that a recipe beats the best by more than the noise band; None where nothing ran yet."""
        if not best.ok:
            return None
        edits: Mapping[str, Any] = {k: now for k, (_, now) in self._task.space.changed(best.recipe, recipe).items()}
        candidate = Candidate(recipe, edits, "", lesson, self._prices.of(recipe).estimate)
        situation = Situation(
            best=best,
            diagnosis=diagnose(best.reports[-1], effective(best.recipe, self._task.cluster)),
            history=self._history,
            calibration=self._calibration,
            suspects=Suspects(),
        )
        priced = self._appraiser.appraise([candidate], situation)
        budget = self._task.budget
        rule = StopRule(band, self._history.reliability, budget.left_for_search, lambda _: budget.run_cost)
        return rule.chance(priced[0]) if priced else None
