"""The adapters around Optuna and scikit-optimize against the libraries' own loops, on five closed-form problems.

python benchmarks/bench_adapters.py [--json] [--evaluations 40] [--seeds 10] [--samplers "skopt ET" ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from baselines.common.model_tuner import Sampler
from baselines.common.optuna_library import optuna
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.outcomes import Outcome
from baselines.scikit_optimize import Settings, SkoptSampler, dimensions_of, estimator, skopt

sys.path.insert(0, str(Path(__file__).parent))
from closed_form import PROBLEMS, Point, Problem

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


def best(trace: Trace) -> float:
    """The best value that keeps the limit; infinite where none does."""
    return min((value for _, value, violation in trace if violation <= 0), default=float("inf"))


def tpe(seed: int) -> Any:
    """Optuna's TPE with eight random points first."""
    return optuna().samplers.TPESampler(seed=seed, n_startup_trials=8)


def gp(seed: int) -> Any:
    """Optuna's GP with eight random points first."""
    return optuna().samplers.GPSampler(seed=seed, n_startup_trials=8)


PAIRS: dict[str, tuple[Callable[[Problem, int, int], Trace], Callable[[Problem, int, int], Trace]]] = {
    "optuna TPE": (
        lambda problem, seed, count: optuna_adapter(problem, tpe(seed), count),
        lambda problem, seed, count: optuna_loop(problem, tpe(seed), count),
    ),
    "optuna GP": (
        lambda problem, seed, count: optuna_adapter(problem, gp(seed), count),
        lambda problem, seed, count: optuna_loop(problem, gp(seed), count),
    ),
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
"""Adapter and library loop by name: problem, seed, evaluations -> trace."""


def compare(name: str, problem: Problem, seeds: int, evaluations: int) -> dict[str, Any]:
    """Mean best value of an adapter and of its library's loop over the same seeds, and seconds a campaign."""
    row: dict[str, Any] = {"sampler": name, "problem": problem.name}
    for side, run in zip(("adapter", "library"), PAIRS[name], strict=True):
        start = time.process_time()
        row[side] = statistics.fmean(best(run(problem, seed, evaluations)) for seed in range(seeds))
        row[f"{side}_cpu_s"] = (time.process_time() - start) / seeds
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", choices=PAIRS, default=list(PAIRS))
    options = parser.parse_args()
    rows = [
        compare(name, problem, options.seeds, options.evaluations) for name in options.samplers for problem in PROBLEMS
    ]
    if options.json:
        print(json.dumps({"evaluations": options.evaluations, "seeds": options.seeds, "rows": rows}, indent=1))
        return
    print(f"mean best of {options.evaluations} evaluations over {options.seeds} seeds; CPU-seconds a campaign")
    for row in rows:
        figures = f"{row['adapter']:9.4f} {row['library']:9.4f} {row['adapter_cpu_s']:7.2f} {row['library_cpu_s']:7.2f}"
        print(f"{row['sampler']:12s} {row['problem']:22s} {figures}")


if __name__ == "__main__":
    main()
