"""The adapter around Optuna against the library's own loop, on five closed-form problems.

python benchmarks/bench_adapters.py [--json] [--evaluations 40] [--seeds 10] [--samplers "optuna GP" ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from baselines.common.model_tuner import Sampler
from baselines.common.optuna_library import optuna
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.outcomes import Outcome

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


def best(trace: Trace) -> float:
    """The best value that keeps the limit; infinite where none does."""
    return min((value for _, value, violation in trace if violation <= 0), default=float("inf"))


def tpe(seed: int) -> Any:
    """Optuna's TPE with eight random points first."""
    return optuna().samplers.TPESampler(seed=seed, n_startup_trials=8)


def gp(seed: int) -> Any:
    """Optuna's GP with eight random points first."""
    return optuna().samplers.GPSampler(seed=seed, n_startup_trials=8)


Run = Callable[[Problem, int, int], Trace]
"""Problem, seed, evaluations -> trace."""

PAIRS: dict[str, tuple[Run, Run]] = {
    "optuna TPE": (
        lambda problem, seed, count: optuna_adapter(problem, tpe(seed), count),
        lambda problem, seed, count: optuna_loop(problem, tpe(seed), count),
    ),
    "optuna GP": (
        lambda problem, seed, count: optuna_adapter(problem, gp(seed), count),
        lambda problem, seed, count: optuna_loop(problem, gp(seed), count),
    ),
}
"""Adapter and library loop by name."""


def compare(pair: tuple[Run, Run], problem: Problem, seeds: int, evaluations: int) -> dict[str, Any]:
    """Mean best value of an adapter and of its library's loop over the same seeds, and seconds a campaign."""
    row: dict[str, Any] = {"problem": problem.name}
    for side, run in zip(("adapter", "library"), pair, strict=True):
        start = time.process_time()
        row[side] = statistics.fmean(best(run(problem, seed, evaluations)) for seed in range(seeds))
        row[f"{side}_cpu_s"] = (time.process_time() - start) / seeds
    return row


def main(pairs: Mapping[str, tuple[Run, Run]]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", choices=pairs, default=list(pairs))
    options = parser.parse_args()
    rows = [
        {"sampler": name, **compare(pairs[name], problem, options.seeds, options.evaluations)}
        for name in options.samplers
        for problem in PROBLEMS
    ]
    if options.json:
        print(json.dumps({"evaluations": options.evaluations, "seeds": options.seeds, "rows": rows}, indent=1))
        return
    print(f"mean best of {options.evaluations} evaluations over {options.seeds} seeds; CPU-seconds a campaign")
    for row in rows:
        figures = f"{row['adapter']:9.4f} {row['library']:9.4f} {row['adapter_cpu_s']:7.2f} {row['library_cpu_s']:7.2f}"
        print(f"{row['sampler']:12s} {row['problem']:22s} {figures}")


if __name__ == "__main__":
    main(PAIRS)
