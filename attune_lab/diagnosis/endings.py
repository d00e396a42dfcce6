"""Ends that are no lack of memory: what a run died of, and whether that says anything of its recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from attune_lab.contracts import RunReport
from attune_lab.diagnosis.memory import LIKELY, short
from attune_lab.diagnosis.signs import Symptom
from attune_lab.logs import KINDS, Failure, TrainingLog

ENDS: Mapping[str, str] = {
    "hang": "hang",
    "nan": "nan",
    "hardware": "hardware_fault",
    "network": "hardware_fault",
    "node_failure": "node_failure",
    "preempted": "preempted",
    "cancelled": "preempted",
    "time_limit": "time_limit",
    "launch_error": "launch_error",
    "backend_missing": "backend_missing",
    "data_error": "crash",
    "crash": "crash",
}
"""Kinds of `attune_lab.logs.KINDS` and their symptoms."""

STATUS: Mapping[str, str] = {
    "hang": "hang",
    "diverged": "nan",
    "node_failure": "node_failure",
    "preempted": "preempted",
    "timeout": "time_limit",
    "invalid": "launch_error",
    "crash": "crash",
}
"""What the status of a run says where no line tells more."""


def endings(report: RunReport, log: TrainingLog | None, failure: Failure | None) -> Iterator[Symptom]:
    """How the run ended, where it did not end well and not for lack of memory; and numbers that are none.

    Args:
        report: its status counts where no line tells more.
        log: its losses are looked at too.
        failure: the line that ended the run, as read.
    """
    if failure is not None and failure.kind in ENDS:
        sentence = KINDS[failure.kind].rstrip(".")
        yield Symptom(ENDS[failure.kind], f'{sentence}: "{short(failure.evidence)}"', LIKELY)
    elif report.status in STATUS:
        why = short(report.message) or f"the run ended as {report.status}"
        yield Symptom(STATUS[report.status], why, LIKELY)
    yield from _not_numbers(report, log)


def _not_numbers(report: RunReport, log: TrainingLog | None) -> Iterator[Symptom]:
    """The first loss or gradient norm that is no number."""
    steps = () if log is None else log.steps
    logged = tuple(step.loss for step in steps if step.loss is not None)
    for what, values in (("loss", report.loss), ("gradient norm", report.grad_norm), ("logged loss", logged)):
        at = next((step for step, value in enumerate(values, start=1) if not math.isfinite(value)), None)
        if at is not None:
            yield Symptom("nan", f"the {what} of step {at} is no number", LIKELY)
            return
