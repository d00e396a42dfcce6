"""Greedy hill climbing on the cost model, corrected by what is measured: the strong baseline of twenty lines.

From the fastest recipe measured so far, the one-parameter change is run that the cost model expects to be fastest
among those expected to fit. If it is faster it is kept, else reverted. A change that did not pay is tried elsewhere
only after the changes that have not failed yet; when a recipe has no neighbour left, the next fastest one is taken.

Source: none; local search as in any textbook, with the cost model in place of a gradient.
"""

from __future__ import annotations

from collections import Counter

from attune_lab.contracts import Proposal, TuningTask
from attune_lab.recipe import Recipe, Value
from baselines.common.moves import moves
from baselines.common.options import read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose


class Greedy(PlannedTuner):
    """Climbs to the best neighbour by the cost model; each run keeps or reverts. It takes no options.

    Raises:
        UserError: the task has options.
    """

    name = "greedy"

    def __init__(self, task: TuningTask) -> None:
        read_options(self.name, task.options)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)
        self._losses: Counter[tuple[str, Value]] = Counter()

    def plan(self) -> Plan:
        """Run the best expected neighbour of the best recipe, until no recipe measured has one left."""
        while True:
            ranked = sorted(self.history.feasible, key=lambda trial: trial.step_time_s or 0.0)
            starts = [trial.recipe for trial in ranked] or [self.task.baseline]
            step = next((found for start in starts if (found := self._step(start))), None)
            if step is None:
                return "every neighbour of every recipe that ran has been run or is not expected to fit"
            best_s, (move, proposal) = self.history.best_s, step
            trial = yield proposal
            if trial.step_time_s is None or trial.step_time_s >= best_s:
                self._losses[move] += 1

    def _step(self, start: Recipe) -> tuple[tuple[str, Value], Proposal] | None:
        """The change of ``start`` to run next with its proposal, or None where nothing new is expected to fit."""
        new = [move for move in moves(self.task, start) if not self.history.known(move.recipe)]
        estimates = self._pricing.of([move.recipe for move in new])
        fitting = [
            pair
            for pair, fits in zip(zip(new, estimates, strict=True), self._pricing.fits(estimates), strict=True)
            if fits
        ]
        if not fitting:
            return None
        move, estimate = min(fitting, key=lambda pair: (self._losses[pair[0].key, pair[0].value], pair[1].step_time_s))
        reason = f"{move.key} to {move.value}: the fastest neighbour by the cost model"
        return (move.key, move.value), propose(self.task, move.recipe, reason, estimate)
