"""What the offline agent costs: its first decision, and all its decisions of a campaign.

*First decision* is the time from the tuner's factory to its first proposal, the reports of the baseline told in
between. *Campaign* is the time inside the tuner over a whole search, the ranking of all layouts known already;
*ranking* is what that takes the first time, once for a recipe and a cluster in a process. Figures are of processor
time, which says more on a busy machine, with the wall clock beside them. The cluster is simulated.

Example: ``OMP_NUM_THREADS=1 python benchmarks/bench_agent.py --json``
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from attune_lab.agent.jumps import ranked_layouts
from attune_lab.contracts import Proposal, RunReport, Tuner, TuningTask
from attune_lab.space import search_space
from attune_lab.tuning import TuneRequest, tune_recipe
from attune_lab.workbench import open_workbench, tuner_factory

T = TypeVar("T")

FIRST_SEED = 100
"""Seeds of a study's development, not of its results."""

RUNS = 60
"""Runs that the figure of a campaign is given for."""


def clocks() -> tuple[float, float]:
    """Seconds of the wall clock and of processor time."""
    return time.perf_counter(), time.process_time()


@dataclass
class Stopwatch:
    """Seconds inside a tuner, by the wall clock and of processor time.

    Attributes:
        first: until its first proposal. whole: in all. runs: reports told after that.
    """

    first: tuple[float, float] | None = None
    whole: tuple[float, float] = (0.0, 0.0)
    runs: int = 0

    def inside(self, call: Callable[..., T], *arguments: Any) -> T:
        """What ``call`` returns; its time is the tuner's."""
        begun = clocks()
        try:
            return call(*arguments)
        finally:
            wall, cpu = (old + now - then for old, now, then in zip(self.whole, clocks(), begun, strict=True))
            self.whole = wall, cpu


@dataclass
class TimedTuner:
    """A tuner under a stopwatch; everything else about it is its own."""

    tuner: Tuner
    watch: Stopwatch = field(default_factory=Stopwatch)

    def ask(self) -> Proposal | None:
        """See `Tuner.ask`."""
        proposal = self.watch.inside(self.tuner.ask)
        self.watch.first = self.watch.first or self.watch.whole
        return proposal

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """See `Tuner.tell`."""
        self.watch.runs += self.watch.first is not None
        self.watch.inside(self.tuner.tell, proposal, report)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tuner, name)


def timed_campaign(options: argparse.Namespace, seed: int, out: Path) -> Stopwatch:
    """The stopwatch of one campaign."""
    watch, factory = Stopwatch(), tuner_factory("attune")

    def timed(task: TuningTask) -> Tuner:
        return TimedTuner(watch.inside(factory, task), watch)

    request = TuneRequest(options.recipe, options.cluster, options.budget, seed=seed, out=out, logs=False)
    tune_recipe(request, factory=timed)
    return watch


def ranking_s(options: argparse.Namespace) -> float:
    """Processor seconds of the ranking of all layouts."""
    bench = open_workbench(options.recipe, options.cluster)
    space = search_space(bench.baseline, bench.cluster)
    begun = time.process_time()
    ranked_layouts(bench.baseline, bench.cluster, space, bench.cost_model)
    return time.process_time() - begun


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures; the first campaign warms the process, and is left out."""
    ranking = ranking_s(options)
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(FIRST_SEED, FIRST_SEED + options.campaigns + 1)
        watches = [timed_campaign(options, seed, Path(folder) / str(seed)) for seed in seeds][1:]
    firsts = [watch.first for watch in watches if watch.first]
    runs = sum(watch.runs for watch in watches)
    return {
        "where": where(options),
        "first_decision_ms": 1e3 * statistics.median(cpu for _, cpu in firsts),
        "first_decision_wall_ms": 1e3 * statistics.median(wall for wall, _ in firsts),
        "campaign_s": RUNS * sum(watch.whole[1] for watch in watches) / runs,
        "campaign_wall_s": RUNS * sum(watch.whole[0] for watch in watches) / runs,
        "ranking_s": ranking,
        "runs": runs,
        "campaigns": len(watches),
    }


def where(options: argparse.Namespace) -> dict[str, Any]:
    """Command, scenario, machine and day of these figures; a busy machine shows in its load."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "scenario": f"{options.recipe} on {options.cluster}, {options.budget}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def show(figures: dict[str, Any]) -> None:
    """The figures as lines."""
    here = figures["where"]
    print(f"where     {here['date']}, {here['machine']}, load {here['load']:.1f}, Python {here['python']}")
    print(f"scenario  {here['scenario']}: {here['command']}")
    print(f"first     {figures['first_decision_ms']:.0f} ms ({figures['first_decision_wall_ms']:.0f} by the clock)")
    print(
        f"campaign  {figures['campaign_s']:.2f} s for {RUNS} runs ({figures['campaign_wall_s']:.2f} by the clock), of "
        f"{figures['runs']} runs in {figures['campaigns']} campaigns"
    )
    print(f"ranking   {figures['ranking_s']:.1f} s, once")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--recipe", default="qwen3-235b-a22b")
    parser.add_argument("--cluster", default="64xH200-SXM5-141GB")
    parser.add_argument("--budget", default="60x")
    parser.add_argument("--campaigns", type=int, default=5)
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
