"""What a campaign has shown so far, kept by recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Estimate, RunReport
from attune_lab.recipe import Recipe

MAX_FAULTS = 2
"""After this many infrastructure faults in a row a recipe is left alone: the nodes will not have it."""

FAILURES = frozenset({"crash", "hang", "diverged"})
"""Endings that say something of a recipe, or of the installation when every recipe meets them."""

WITH_EASE = 0.8
"""A predicted peak below this share of the memory fits with ease: predictions are some percent off."""

HICCUP = 1.1
"""A step this many times the median of its run met something that passes (garbage collection, a network retry)."""

SLOW_RUN = 1.05
"""A run this many times slower than another of the same recipe met a slow node; it says nothing of the recipe."""


def steady(report: RunReport) -> RunReport:
    """``report`` with its timed steps only, those above `HICCUP` times their median left out."""
    timed = report.timed_step_times_s
    limit = HICCUP * statistics.median(timed)
    return report.model_copy(update={"warmup_steps": 0, "step_times_s": tuple(t for t in timed if t <= limit)})


@dataclass
class Trial:
    """One recipe with everything measured about it.

    Attributes:
        estimate: the cost model's view of it.
        reports: its runs, infrastructure faults left out.
        answers: times its outcome was told; a repeat may be answered with the earlier report.
        faults: runs the infrastructure lost.
    """

    recipe: Recipe
    estimate: Estimate
    reports: list[RunReport] = field(default_factory=list)
    answers: int = 0
    faults: int = 0
    _ok: tuple[int, list[RunReport]] = field(default=(0, []), init=False, repr=False)

    @property
    def ok(self) -> list[RunReport]:
        """The steady part of its runs with timed steps, runs on slow nodes left out."""
        if self._ok[0] != len(self.reports):
            self._ok = len(self.reports), self._steady_runs()
        return self._ok[1]

    def _steady_runs(self) -> list[RunReport]:
        runs = [steady(run) for run in self.reports if run.status == "ok" and run.timed_step_times_s]
        fastest = min((run.mean_step_time_s or math.inf for run in runs), default=math.inf)
        return [run for run in runs if (run.mean_step_time_s or math.inf) <= SLOW_RUN * fastest]

    @property
    def step_time_s(self) -> float | None:
        """Mean over the steady steps of its runs; None without one."""
        times = [time for report in self.ok for time in report.step_times_s]
        return statistics.fmean(times) if times else None

    @property
    def timed_steps(self) -> int:
        """Steady steps of all its runs together."""
        return sum(len(report.step_times_s) for report in self.ok)

    @property
    def peak_memory_bytes(self) -> float | None:
        """Highest measured peak; None where no run told one."""
        return max((max(report.peak_memory_bytes) for report in self.ok if report.peak_memory_bytes), default=None)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether a run of it did."""
        return any(report.status == "oom" for report in self.reports)

    @property
    def failed_unexpectedly(self) -> bool:
        """Whether a run failed, not for memory that was predicted to be scarce."""
        eased = self.estimate.peak_memory_bytes < WITH_EASE * self.estimate.memory_capacity_bytes
        failures = FAILURES | {"oom"} if eased else FAILURES
        return any(report.status in failures for report in self.reports)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to gain from proposing it as new."""
        return bool(self.reports) or self.faults >= MAX_FAULTS


class History:
    """Trials by recipe, in the order first run."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    @property
    def recipes_run(self) -> int:
        """How many recipes have a report that is not the infrastructure's doing."""
        return sum(bool(trial.reports) for trial in self)

    def get(self, recipe: Recipe) -> Trial | None:
        """The trial of ``recipe``, or None."""
        return self._trials.get(recipe.digest)

    def is_settled(self, recipe: Recipe) -> bool:
        """Whether ``recipe`` has been tried and needs no other first run."""
        trial = self.get(recipe)
        return trial is not None and trial.is_settled

    @property
    def reliability(self) -> float:
        """The share of recipes that run, by Laplace's rule; what ran out of memory counts where it was predicted to
        fit with ease, and is another question elsewhere.
        """
        ran = sum(bool(trial.ok) for trial in self)
        failed = sum(not trial.ok and trial.failed_unexpectedly for trial in self)
        return (ran + 1) / (ran + failed + 1)

    def record(self, recipe: Recipe, estimate: Estimate, report: RunReport) -> Trial:
        """File ``report`` under its recipe; returns the trial."""
        trial = self._trials.setdefault(recipe.digest, Trial(recipe, estimate))
        if report.status in INFRASTRUCTURE_FAULTS:
            trial.faults += 1
        else:
            trial.answers += 1
            if all(report.label != known.label for known in trial.reports):
                trial.reports.append(report)
        return trial
