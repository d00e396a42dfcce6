"""The adapter around scikit-optimize against the library's own loop, on five closed-form problems.

python benchmarks/bench_skopt.py [--json] [--evaluations 40] [--seeds 10] [--samplers "skopt ET" ...]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.scikit_optimize import Settings, SkoptSampler, dimensions_of, estimator, skopt

sys.path.insert(0, str(Path(__file__).parent))
from bench_adapters import Run, Trace, by_adapter, main
from closed_form import Point, Problem


def skopt_adapter(problem: Problem, settings: Settings, seed: int, evaluations: int) -> Trace:
    """What the adapter makes of a problem with scikit-optimize; the limit is known to it beforehand."""
    sampler = SkoptSampler(
        problem.choices, settings, seed, ordered=problem.ordered, legal=lambda point: problem.violation(point) <= 0
    )
    return by_adapter(problem, sampler, evaluations)


def skopt_loop(problem: Problem, settings: Settings, seed: int, evaluations: int) -> Trace:
    """The same with scikit-optimize's own loop, with the same surrogate, acquisition and number of candidates."""
    trace: Trace = []
    keys = list(problem.choices)

    def point(places: Sequence[Any]) -> Point:
        return {key: problem.choices[key][int(place)] for key, place in zip(keys, places, strict=True)}

    def objective(places: Sequence[Any]) -> float:
        found = point(places)
        trace.append((found, problem.value(found), problem.violation(found)))
        return trace[-1][1]

    dimensions = dimensions_of(problem.choices, problem.ordered)
    with warnings.catch_warnings(action="ignore"):  # of points evaluated before
        skopt().optimizer.base_minimize(
            objective,
            dimensions,
            estimator(settings, dimensions, seed),
            n_calls=evaluations,
            n_initial_points=settings.startup,
            acq_func=settings.acquisition,
            acq_optimizer="sampling",
            n_points=settings.candidates,
            random_state=seed,
            space_constraint=lambda places: problem.violation(point(places)) <= 0,
        )
    return trace


PAIRS: dict[str, tuple[Run, Run]] = {
    "skopt ET": (
        lambda problem, seed, count: skopt_adapter(problem, Settings("ET"), seed, count),
        lambda problem, seed, count: skopt_loop(problem, Settings("ET"), seed, count),
    ),
    "skopt RF": (
        lambda problem, seed, count: skopt_adapter(problem, Settings("RF"), seed, count),
        lambda problem, seed, count: skopt_loop(problem, Settings("RF"), seed, count),
    ),
    "skopt GP": (
        lambda problem, seed, count: skopt_adapter(problem, Settings("GP"), seed, count),
        lambda problem, seed, count: skopt_loop(problem, Settings("GP"), seed, count),
    ),
}
"""Adapter and library loop by name."""


if __name__ == "__main__":
    main(PAIRS)
