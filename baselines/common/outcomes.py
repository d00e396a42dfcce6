"""What a sampler is told of a trial: one finite value to be minimised, and by how much each limit was broken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from attune_lab.contracts import Estimate
from baselines.common.history import History, Trial

UNKNOWN_VIOLATION = 0.25
"""Told of a failure whose size nobody knows; memory is told as the share by which it is exceeded."""


@dataclass(frozen=True)
class Outcome:
    """One trial as a sampler hears of it.

    Attributes:
        value: seconds a step; for a failure the worst that any trial has taken so far, so that the scale stays sound.
        violations: limit (``memory``, ``time``, ``failure``) -> by how much it is broken; at or below 0 it is kept.
        cost_s: wall-clock seconds of the trial, for samplers that weigh cost.
        notes: what a person wants to read beside it.
    """

    value: float
    violations: Mapping[str, float] = field(default_factory=dict)
    cost_s: float = 1.0
    notes: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def violation(self) -> float:
        """Memory and failure as one limit, the larger violation; negative is the memory left. A run that was cut off
        for being slow breaks no limit here: its value says so already."""
        return max((broken for limit, broken in self.violations.items() if limit != "time"), default=0.0)


def outcome(history: History, trial: Trial, estimate: Estimate, n_gpus: int) -> Outcome:
    """The outcome of ``trial``, which has at least one report.

    Args:
        history: where the worst value so far is found.
        estimate: what the cost model expects of the recipe; its memory stands in for a peak that no run told.
        n_gpus: for the seconds a run took.
    """
    report = trial.reports[-1]
    excess = _memory_excess(trial, estimate)
    violations = {"memory": min(excess, 0.0)}
    if not trial.feasible:
        limit = {"oom": "memory", "timeout": "time"}.get(trial.status, "failure")
        violations[limit] = excess if limit == "memory" and excess > 0 else UNKNOWN_VIOLATION
    notes: dict[str, str | float] = {"status": trial.status, "gpu_hours": report.gpu_hours, "label": report.label}
    cost_s = max(report.gpu_hours * 3600 / n_gpus, 1.0)
    return Outcome(trial.step_time_s or worst_s(history), violations, cost_s, notes)


def worst_s(history: History) -> float:
    """The slowest mean step seen so far, seconds, also of runs that were cut off; 1 where none was timed."""
    timed = (report.mean_step_time_s for trial in history for report in trial.reports)
    return max((seconds for seconds in timed if seconds is not None), default=1.0)


def _memory_excess(trial: Trial, estimate: Estimate) -> float:
    """By how much the peak is above the capacity, as a share of it; the predicted peak where no run told the real one,
    and where it explains an out-of-memory error better."""
    capacity = trial.reports[-1].memory_capacity_bytes or estimate.memory_capacity_bytes
    measured = trial.peak_memory_bytes
    peaks = [] if measured is None else [measured]
    if measured is None or trial.status == "oom":
        peaks.append(estimate.peak_memory_bytes)
    known = [peak for peak in peaks if math.isfinite(peak)]
    return (max(known) - capacity) / capacity if known else 0.0
