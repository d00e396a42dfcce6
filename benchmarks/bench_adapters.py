"""The adapters around Optuna and scikit-optimize against the libraries' own loops, on five closed-form problems.

python benchmarks/bench_adapters.py [--json] [--evaluations 40] [--seeds 10] [--without-gp]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))

from baselines.common.model_tuner import Sampler
from baselines.common.optuna_library import optuna
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.outcomes import Outcome
from benchmarks.closed_form import Point, Problem

Trace = list[tuple[Point, float, float]]
"""Points in the order evaluated, with value and violation."""


def by_adapter(problem: Problem, sampler: Sampler, evaluations: int) -> Trace:
    """What an adapter makes of a problem, asked and told."""
    trace: Trace = []
    while len(trace) < evaluations and (point := sampler.ask()) is not None:
        value, violation = problem.value(point), problem.violation(point)
        sampler.tell(point, Outcome(value, {"limit": violation}))
        trace.append((point, value, violation))
    return trace


def optuna_adapter(problem: Problem, sampler: Any, evaluations: int) -> Trace:
    """What the adapter makes of a problem with one of Optuna's samplers."""
    return by_adapter(problem, OptunaSampler(problem.choices, sampler), evaluations)


def optuna_loop(problem: Problem, sampler: Any, evaluations: int) -> Trace:
    """The same with Optuna's own loop."""
    trace: Trace = []

    def objective(trial: Any) -> float:
        point = {key: trial.suggest_categorical(key, values) for key, values in problem.choices.items()}
        trace.append((point, problem.value(point), problem.violation(point)))
        trial.set_constraint("limit", trace[-1][2])
        return trace[-1][1]

    optuna().create_study(sampler=sampler).optimize(objective, n_trials=evaluations)
    return trace


def best(trace: Trace) -> float:
    """The best value that keeps the limit; infinite where none does."""
    return min((value for _, value, violation in trace if violation <= 0), default=float("inf"))
