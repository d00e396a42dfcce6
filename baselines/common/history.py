"""What a tuner has been told so far, by recipe."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, RunReport
from attune_lab.recipe import Recipe

MAX_FAULTS = 2
"""After this many answers in which the infrastructure failed, a recipe is left alone."""


@dataclass
class Trial:
    """One recipe and what was told about it.

    Attributes:
        reports: its distinct runs, infrastructure faults left out.
        faults: answers in which the infrastructure failed.
    """

    recipe: Recipe
    reports: list[RunReport] = field(default_factory=list)
    faults: int = 0

    @property
    def step_time_s(self) -> float | None:
        """Mean over its runs of the mean timed step, seconds; None where none ran to the end."""
        ran = [report for report in self.reports if report.status == "ok"]
        times = [time for report in ran if (time := report.mean_step_time_s) is not None]
        return statistics.fmean(times) if times else None

    @property
    def feasible(self) -> bool:
        """Whether it has run to the end."""
        return self.step_time_s is not None

    @property
    def status(self) -> str:
        """``ok`` once it has run to the end, else how it last ended; empty where only the infrastructure failed."""
        if self.feasible:
            return "ok"
        return self.reports[-1].status if self.reports else ""

    @property
    def peak_memory_bytes(self) -> float | None:
        """Highest measured peak of any stage; None where no run told one."""
        return max((peak for report in self.reports for peak in report.peak_memory_bytes), default=None)


class History:
    """Trials in the order first told. Seconds throughout: a smaller value is a better recipe."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    def __len__(self) -> int:
        return len(self._trials)

    def record(self, recipe: Recipe, report: RunReport) -> Trial:
        """File ``report`` under its recipe and return the trial; a report told before is not counted again."""
        trial = self._trials.setdefault(recipe.digest, Trial(recipe))
        if report.status in INFRASTRUCTURE_FAULTS:
            trial.faults += 1
        elif all(report.label != earlier.label for earlier in trial.reports):
            trial.reports.append(report)
        return trial

    def get(self, recipe: Recipe) -> Trial | None:
        """The trial of ``recipe``, or None if it was never told."""
        return self._trials.get(recipe.digest)

    def trial(self, recipe: Recipe) -> Trial:
        """The trial of ``recipe``.

        Raises:
            KeyError: it was never told.
        """
        return self._trials[recipe.digest]

    def known(self, recipe: Recipe) -> bool:
        """Whether there is no point in proposing ``recipe``: it has an outcome, or met `MAX_FAULTS` faults."""
        trial = self.get(recipe)
        return trial is not None and (bool(trial.reports) or trial.faults >= MAX_FAULTS)

    @property
    def feasible(self) -> list[Trial]:
        """Trials that ran to the end."""
        return [trial for trial in self if trial.feasible]

    @property
    def best(self) -> Trial | None:
        """The trial with the smallest mean step time; the first of equals."""
        return min(self.feasible, key=lambda trial: trial.step_time_s or math.inf, default=None)

    @property
    def best_s(self) -> float:
        """Its step time, seconds; infinite before anything has run."""
        return min((trial.step_time_s or math.inf for trial in self.feasible), default=math.inf)

    @property
    def worst_s(self) -> float | None:
        """The largest step time measured, seconds: a finite value to tell a model of a failure; None without one."""
        return max((trial.step_time_s or 0.0 for trial in self.feasible), default=None)

    @property
    def failures(self) -> Counter[str]:
        """How many recipes ended in each status other than ``ok``, by status; infrastructure faults do not count."""
        return Counter(trial.status for trial in self if trial.reports and not trial.feasible)
