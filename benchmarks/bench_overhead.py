"""What the bench itself costs for each run of a campaign, beside Optuna's own storage in the same process.

*Overhead* is what passes from one answer to the tuner to the next where a run lies between them, less the time inside
the tuner and inside the cluster: checking the proposal, the gate's look at its settings, budget and store. *Runs per
second* are whole campaigns of `attune tune`, opened, searched, judged and closed, on one core.

Example: ``OMP_NUM_THREADS=1 python benchmarks/bench_overhead.py --json``
"""

from __future__ import annotations

import argparse
import datetime
import importlib
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

from attune_lab.campaign import CampaignSpec, parse_budget, run_campaign
from attune_lab.cluster import SimulatedCluster, world_seed
from attune_lab.contracts import Cluster, Proposal, RunReport, Tuner, TuningTask
from attune_lab.gate import CampaignGate
from attune_lab.space import SearchSpace
from attune_lab.tuning import TuneRequest, tune_recipe
from attune_lab.workbench import Workbench, open_workbench, tuner_factory

T = TypeVar("T")

FIRST_SEED = 100
"""Seeds of a study's development, not of its results."""


def clocks() -> tuple[float, float]:
    """Seconds of the wall clock and of processor time; the second says more on a busy machine."""
    return time.perf_counter(), time.process_time()


@dataclass
class Stopwatch:
    """Seconds of the bench's own for each run of the search, by the wall clock and of processor time."""

    overheads: list[tuple[float, float]] = field(default_factory=list)
    ran: bool = False
    _elsewhere: tuple[float, float] = (0.0, 0.0)
    _answered: tuple[float, float] | None = None

    def outside(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What ``call`` returns; its time is not the bench's."""
        start = clocks()
        try:
            return call(*arguments, **named)
        finally:
            wall, cpu = (old + now - then for old, now, then in zip(self._elsewhere, clocks(), start, strict=True))
            self._elsewhere = wall, cpu

    def answered(self) -> None:
        """The tuner has its answer: one round is over."""
        here = clocks()
        if self.ran and self._answered:  # the first answers tell of the baseline, before the search
            wall, cpu = (now - then - e for now, then, e in zip(here, self._answered, self._elsewhere, strict=True))
            self.overheads.append((wall, cpu))
        self._answered, self._elsewhere, self.ran = here, (0.0, 0.0), False


@dataclass
class TimedTuner:
    """A tuner whose calls are kept out of the overhead."""

    tuner: Tuner
    watch: Stopwatch

    def ask(self) -> Proposal | None:
        """See `Tuner.ask`."""
        return self.watch.outside(self.tuner.ask)

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """See `Tuner.tell`."""
        self.watch.outside(self.tuner.tell, proposal, report)
        self.watch.answered()


@dataclass(frozen=True)
class TimedCluster:
    """A cluster whose calls are kept out of the overhead."""

    cluster: Cluster
    watch: Stopwatch

    @property
    def spec(self) -> Any:
        """See `Cluster.spec`."""
        return self.cluster.spec

    def startup_bound_s(self, recipe: Any) -> float:
        """See `Cluster.startup_bound_s`."""
        return self.watch.outside(self.cluster.startup_bound_s, recipe)

    def run(self, recipe: Any, steps: int, **named: Any) -> RunReport:
        """See `Cluster.run`."""
        self.watch.ran = True
        return self.watch.outside(self.cluster.run, recipe, steps, **named)


def timed_campaign(bench: Workbench, options: argparse.Namespace, seed: int, out: Path) -> Stopwatch:
    """The stopwatch of one campaign."""
    watch = Stopwatch()
    factory = tuner_factory(options.tuner)

    def timed(task: TuningTask) -> Tuner:
        return TimedTuner(factory(task), watch)

    run_campaign(
        CampaignSpec(options.recipe, bench.baseline, bench.cluster.name, parse_budget(options.budget), "timed", seed),
        out,
        cluster=TimedCluster(SimulatedCluster(bench.cluster, world_seed(seed), log_dir=out / "logs"), watch),
        tuner_factory=timed,
        space=SearchSpace(bench.baseline, bench.cluster),
        cost_model=bench.cost_model,
        gate=CampaignGate(bench.cluster),
    )
    return watch


def overhead(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Milliseconds of overhead for each run of the search, over several campaigns."""
    bench = open_workbench(options.recipe, options.cluster)
    watches = [
        timed_campaign(bench, options, FIRST_SEED + turn, folder / f"timed-{turn}") for turn in range(options.campaigns)
    ]
    pairs = [pair for watch in watches for pair in watch.overheads]
    walls = sorted(1e3 * wall for wall, _ in pairs)
    return {
        "median_ms": statistics.median(walls),
        "p90_ms": walls[int(0.9 * (len(walls) - 1))],
        "median_cpu_ms": statistics.median(1e3 * cpu for _, cpu in pairs),
        "runs": len(pairs),
    }


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Simulated runs per second of wall clock and of processor time, whole campaigns, the first one left out."""
    runs, walls, cpus = 0, [], []
    for turn in range(options.campaigns + 1):
        out = folder / f"whole-{turn}"
        request = TuneRequest(
            options.recipe, options.cluster, options.budget, tuner=options.tuner, seed=FIRST_SEED + turn, out=out
        )
        wall, cpu = time.perf_counter(), time.process_time()
        tune_recipe(request)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        runs += len(list((out / "logs").glob("*.log"))) if turn else 0
    return {
        "runs_per_s": runs / sum(walls[1:]),
        "runs_per_cpu_s": runs / sum(cpus[1:]),
        "campaign_s": statistics.median(walls[1:]),
        "first_campaign_s": walls[0],
        "campaigns": options.campaigns,
        "runs": runs,
    }


def optuna_storage(parameters: int, trials: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of a trial of Optuna's random sampler in its SQLite storage, with nothing to evaluate.

    Its ``ask``, as many ``suggest_int`` as the search space has parameters, and its ``tell``.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        return {"absent": f"not installed ({error}): pip install optuna"}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=f"sqlite:///{folder / 'optuna.db'}", sampler=optuna.samplers.RandomSampler(0))
    times = []
    for _ in range(trials):
        start = time.perf_counter()
        trial = study.ask()
        value = sum(trial.suggest_int(f"parameter {number}", 0, 7) for number in range(parameters))
        study.tell(trial, value)
        times.append(1e3 * (time.perf_counter() - start))
    return {"median_ms": statistics.median(times), "trials": trials, "version": optuna.__version__}


def where(options: argparse.Namespace) -> dict[str, Any]:
    """Command, scenario, machine and day of these figures; a busy machine shows in its load."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "scenario": f"{options.recipe} on {options.cluster}, {options.budget}, {options.tuner}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every section; the whole campaigns come first, and warm the process for the rest."""
    figures: dict[str, Any] = {"where": where(options)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures["throughput"] = throughput(options, folder)
        figures["overhead"] = overhead(options, folder)
        bench = open_workbench(options.recipe, options.cluster)
        parameters = len(SearchSpace(bench.baseline, bench.cluster).parameters)
        peer = optuna_storage(parameters, options.peer_trials, folder)
    if "absent" not in peer:
        peer |= {"parameters": parameters, "ratio": peer["median_ms"] / figures["overhead"]["median_ms"]}
    figures["optuna"] = peer
    return figures


def show(figures: dict[str, Any]) -> None:
    """The figures as lines."""
    here, whole, part, peer = (figures[name] for name in ("where", "throughput", "overhead", "optuna"))
    print(f"where       {here['date']}, {here['machine']}, load {here['load']:.1f}, Python {here['python']}")
    print(f"scenario    {here['scenario']}: {here['command']}")
    print(
        f"throughput  {whole['runs_per_s']:.0f} simulated runs/s, {whole['runs_per_cpu_s']:.0f} for each second of "
        f"a core ({whole['runs']} runs in {whole['campaigns']} campaigns of {whole['campaign_s']:.2f} s)"
    )
    print(
        f"overhead    median {part['median_ms']:.2f} ms, 90 % below {part['p90_ms']:.2f} ms; of processor time "
        f"median {part['median_cpu_ms']:.2f} ms ({part['runs']} runs)"
    )
    if "absent" in peer:
        print(f"optuna      {peer['absent']}")
    else:
        print(
            f"optuna      {peer['median_ms']:.2f} ms a trial of {peer['parameters']} parameters in its SQLite "
            f"storage, {peer['ratio']:.1f} times our overhead"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--recipe", default="glm-4.5")
    parser.add_argument("--cluster", default="64xH200-SXM5-141GB")
    parser.add_argument("--budget", default="40x")
    parser.add_argument("--tuner", default="random")
    parser.add_argument("--campaigns", type=int, default=5, help="campaigns of each kind")
    parser.add_argument("--peer-trials", type=int, default=100, help="trials of Optuna's storage")
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
