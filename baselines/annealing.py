"""Simulated annealing on what is measured: a Metropolis chain without any model.

The chain starts from the recipe. Each step changes one parameter and runs the result; a faster recipe is taken, a
slower one with a chance that falls as the budget is spent, a failure never. Only rules of the stack keep it from
running something: this is what search without an idea of the hardware can do.

**Source:** Kirkpatrick et al. 1983; the model-free form of FlexFlow's search (arXiv 1807.05358). Chosen here: cost is
the logarithm of the step time, and the temperature falls in proportion to the budget left.
"""

from __future__ import annotations

import math

import numpy as np

from attune_lab.contracts import TuningTask
from baselines.common.history import Trial
from baselines.common.metropolis import accepts, random_move
from baselines.common.options import Option, read_options
from baselines.common.planned import Plan, PlannedTuner
from baselines.common.proposals import propose

OPTIONS = {"temperature": Option(0.05, least=0.001, most=10.0)}

PATIENCE = 1000
"""Steps in a row onto illegal or known recipes after which the chain has nowhere new to go."""


class Annealing(PlannedTuner):
    """One chain on measured step times. Option of the task: ``temperature`` at the start, in log step time.

    Raises:
        UserError: an unknown option or value.
    """

    name = "annealing"

    def __init__(self, task: TuningTask) -> None:
        self._temperature: float = read_options(self.name, task.options, OPTIONS)["temperature"]
        super().__init__(task)

    def plan(self) -> Plan:
        """Walk until nothing new is in reach."""
        rng = np.random.default_rng(self.task.seed)
        budget = self.task.budget
        whole = budget.left_for_search or 1.0
        start = self.history.get(self.task.baseline)
        here, cost, idle = self.task.baseline, _cost(start), 0
        while idle < PATIENCE:
            moved, draw = random_move(self.task, here, rng), rng.random()
            idle += 1
            if moved is None:
                continue
            temperature = self._temperature * max(budget.left_for_search / whole, 1e-3)
            idle = idle if self.history.known(moved) else 0
            trial = yield propose(self.task, moved, f"one random change at temperature {temperature:.3f}")
            if accepts(cost, _cost(trial), temperature, draw):
                here, cost = moved, _cost(trial)
        return f"{PATIENCE} steps in a row led to nothing new"


def _cost(trial: Trial | None) -> float:
    """Log step time; infinite where it did not run."""
    return math.log(trial.step_time_s) if trial is not None and trial.step_time_s is not None else math.inf
