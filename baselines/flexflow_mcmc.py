"""FlexFlow's search: Markov chains on the cost model, whose best states are run.

The published system walks over parallelization strategies by Metropolis-Hastings on simulated time, with restarts
from data parallelism and from other strategies, and executes the best strategy found.
**Source:** FlexFlow, arXiv 1807.05358 (section 6); flexflow/FlexFlow.

Faithful: one-parameter proposals, acceptance min(1, exp(beta (c - c'))) on the simulator's time, what does not fit
costs infinitely much, restarts from the recipe and from a data-parallel start. Reconstructed: states are recipes, not
maps from operators to devices; many short chains run side by side, because the cost model prices batches; c is the
logarithm of the step time; and the chains' best states are run one after the other, those first that the model can
tell apart and that do not look like recipes refused before their run. The space moves some settings along with a
parameter, so proposals are not strictly symmetric.
"""

from __future__ import annotations

import math

import numpy as np

from attune_lab.contracts import Estimate, TuningTask
from attune_lab.recipe import Recipe, Value
from baselines.common.metropolis import accepts, random_move
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.refusals import Refusals

OPTIONS = {
    "beta": Option(50.0, least=0.1, most=1e6),
    "chains": Option(12, least=2, most=1000),
    "steps": Option(120, least=1, most=100_000),
    "margin": Option(0.0, least=0.0, most=0.9),
}

DATA_PARALLEL: dict[str, Value] = {"tp": 1, "pp": 1, "cp": 1, "etp": 1, "vpp": 1, "mbs": 1, "recompute": "full"}
"""The other start: no model parallelism but the experts', and the least activation memory."""


class FlexFlowMCMC(PlannedTuner):
    """Runs the best states of Metropolis chains on the cost model.

    Options of the task: ``beta`` (inverse temperature), ``chains``, ``steps`` of each, ``margin`` (share of memory that
    must be left free).

    Raises:
        UserError: an unknown option or value.
    """

    name = "flexflow-mcmc"

    def __init__(self, task: TuningTask) -> None:
        self._options = read_options(self.name, task.options, OPTIONS)
        super().__init__(task)
        self._pricing = Pricing(task, self.history)
        self._refusals = Refusals(task, self.history)
        self._visited: dict[str, Recipe] = {}

    def plan(self) -> Plan:
        """Walk, then run the states seen from the fastest expected on; memory is judged anew after each run."""
        self._walk()
        twins: set[tuple[float, float]] = set()
        while ranked := self._ranked(twins):
            recipe, estimate = next((pair for pair in ranked if not self._refusals.expects(pair[0])), ranked[0])
            twins.add(_figures(estimate))
            yield propose(self.task, recipe, "the best state of the chains that was not run yet", estimate)
        return "every state of the chains that is expected to fit has been run"

    def _walk(self) -> None:
        """Run all chains, half of them from each start."""
        rng = np.random.default_rng(self.task.seed)
        data_parallel = {key: value for key, value in DATA_PARALLEL.items() if key in self.task.space.parameters}
        starts = [self.task.baseline, self.task.space.apply(self.task.baseline, data_parallel)]
        here = [starts[number % 2] for number in range(self._options["chains"])]
        costs = self._costs(here)
        for _ in range(self._options["steps"]):
            moved = [random_move(self.task, recipe, rng) or recipe for recipe in here]
            draws = rng.random(len(here))
            for chain, (recipe, cost) in enumerate(zip(moved, self._costs(moved), strict=True)):
                if accepts(costs[chain], cost, 1.0 / self._options["beta"], draws[chain]):
                    here[chain], costs[chain] = recipe, cost

    def _costs(self, recipes: list[Recipe]) -> list[float]:
        """Log of the predicted step time, infinite where a recipe is not expected to fit; all become visited."""
        self._visited |= {recipe.digest: recipe for recipe in recipes}
        estimates = self._pricing.of(recipes)
        return [
            math.log(estimate.step_time_s) if fits else math.inf
            for estimate, fits in zip(
                estimates, self._pricing.fits(estimates, margin=self._options["margin"]), strict=True
            )
        ]

    def _ranked(self, twins: set[tuple[float, float]]) -> list[tuple[Recipe, Estimate]]:
        """Open states that should fit: those unlike any in ``twins`` first, then by predicted step time."""
        open_ = [recipe for recipe in self._visited.values() if not self.history.known(recipe)]
        estimates = self._pricing.of(open_)
        fits = self._pricing.fits(estimates, margin=self._options["margin"])
        fitting = [pair for pair, fit in zip(zip(open_, estimates, strict=True), fits, strict=True) if fit]
        return sorted(fitting, key=lambda pair: (_figures(pair[1]) in twins, pair[1].step_time_s))


def _figures(estimate: Estimate) -> tuple[float, float]:
    """What the model tells two recipes apart by."""
    return estimate.step_time_s, estimate.peak_memory_bytes
