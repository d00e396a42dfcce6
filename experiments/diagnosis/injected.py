"""Runs of simulated worlds with something put into their series of steps: the truth is what was put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import RunReport
from attune_lab.logs import LoggedStep, TrainingLog
from attune_lab.recipe.effective import effective
from attune_lab.workbench import open_workbench

Floats = NDArray[np.float64]
Random = np.random.Generator

SCENARIOS = (("qwen3-235b-a22b", "64xH200-SXM5-141GB"), ("mixtral-8x22b", "64xH100-SXM5-80GB"),
             ("gpt-oss-120b", "64xH100-SXM5-80GB"), ("llama-3.1-405b", "512xH100-SXM5-80GB"))  # fmt: skip
WARMUP = 3
CLEAN = "none"
IN_TIME = ("step_time_jitter", "step_time_drift", "straggler", "data_stall", "memory_growth")
"""Symptoms that only a series shows; of these the first in rank is compared with what was put in."""


@dataclass(frozen=True)
class Injected:
    """A run with its truth.

    Attributes:
        truth: the symptom put in, or `CLEAN`.
        how: in a few words.
    """

    truth: str
    how: str
    report: RunReport
    log: TrainingLog | None
    settings: Mapping[str, Any]


def _jitter(times: Floats, random: Random, _: Mapping[str, Any]) -> Floats:
    """Every step off by some 3 to 8 %."""
    return times * np.exp(random.uniform(0.03, 0.08) * random.normal(size=times.size))


def _collections(times: Floats, random: Random, settings: Mapping[str, Any]) -> Floats:
    """One step in 10 to 19 is longer by 10 to 50 %."""
    period = int(random.choice([p for p in range(10, 20) if p != settings["num_workers"]]))
    late: Floats = (np.arange(times.size) % period == int(random.integers(period))).astype(np.float64)
    return times + times * late * random.uniform(0.1, 0.5)


def _loader(times: Floats, random: Random, settings: Mapping[str, Any]) -> Floats:
    """One step for each worker of the loader is longer by 10 to 50 %: a batch of every worker takes too long."""
    late: Floats = (np.arange(times.size) % max(int(settings["num_workers"]), 2) == 0).astype(np.float64)
    return times + times * late * random.uniform(0.1, 0.5)


def _throttled(times: Floats, random: Random, _: Mapping[str, Any]) -> Floats:
    """From a step of the middle half on everything takes 5 to 25 % longer, as `World` has slow nodes."""
    start = int(random.integers(times.size // 4, 3 * times.size // 4))
    return times * (1 + (np.arange(times.size) >= start) * random.uniform(0.05, 0.25))


def _drifting(times: Floats, random: Random, _: Mapping[str, Any]) -> Floats:
    """The last step takes 5 to 20 % longer than the first, in a straight line."""
    return times * (1 + np.linspace(0, random.uniform(0.05, 0.20), times.size))


def _untouched(times: Floats, _random: Random, _settings: Mapping[str, Any]) -> Floats:
    return times


INJECTIONS: tuple[tuple[str, str, Callable[[Floats, Random, Mapping[str, Any]], Floats]], ...] = (
    (CLEAN, "nothing", _untouched),
    ("step_time_jitter", "jitter", _jitter),
    ("step_time_jitter", "collections", _collections),
    ("data_stall", "slow loader", _loader),
    ("straggler", "throttled node", _throttled),
    ("step_time_drift", "drift", _drifting),
)


def injected(worlds: int, seed: int, steps: int) -> Iterator[Injected]:
    """Every injection in ``worlds`` worlds of each scenario: in our own timing, or in columns of a log."""
    for index, (name, cluster) in enumerate(SCENARIOS):
        bench = open_workbench(name, cluster)
        settings = effective(bench.baseline, bench.cluster)
        for world_seed in range(seed, seed + worlds):
            report = SimulatedCluster(bench.cluster, world_seed).run(bench.baseline, steps, label="1")
            if report.status != "ok":
                continue
            random = np.random.default_rng([world_seed, index])
            times = np.array(report.step_times_s)
            for truth, how, change in INJECTIONS:
                changed = np.concatenate([times[:WARMUP], change(times[WARMUP:], random, settings)])
                timed = report.model_copy(update={"step_times_s": tuple(changed.tolist())})
                yield Injected(truth, how, timed, None, settings)
            yield Injected("data_stall", "timer of a slow loader", report, _waiting(times, random), settings)
            yield Injected("memory_growth", "memory column", report, _growing(times, random), settings)


def _waiting(times: Floats, random: Random) -> TrainingLog:
    """A log whose data timer takes 5 to 30 % of the step, in milliseconds as Megatron-LM prints timers."""
    wait = 1000 * random.uniform(0.05, 0.30) * times
    return _log(times, "batch-generator", wait)


def _growing(times: Floats, random: Random) -> TrainingLog:
    """A log whose memory column rises by 5 to 20 %, with noise, in GB as DeepSpeed prints it."""
    rise = np.linspace(0, random.uniform(0.05, 0.20), times.size)
    return _log(times, "MaxMemAllocated", 60 * (1 + rise) * np.exp(0.002 * random.normal(size=times.size)))


def _log(times: Floats, column: str, values: Floats) -> TrainingLog:
    steps = (
        LoggedStep(step, step_time_s=float(seconds), other={column: float(value)})
        for step, (seconds, value) in enumerate(zip(times, values, strict=True), start=1)
    )
    return TrainingLog("megatron-lm", tuple(steps))
