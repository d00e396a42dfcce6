"""Ends that are no lack of memory: what a run died of, and whether that says anything of its recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from attune_lab.contracts import RunReport
from attune_lab.diagnosis.memory import LIKELY, _short
from attune_lab.diagnosis.signs import Symptom
from attune_lab.logs import TrainingLog

_WORDS: Sequence[tuple[str, str]] = (
    ("preempted", r"DUE TO (?:PREEMPTION|JOB REQUEUE)|\bPREEMPTED\b"),
    ("time_limit", r"DUE TO TIME LIMIT|\bTIMEOUT\b"),
    ("node_failure", r"[Nn]ode failure|NODE_FAIL|DUE TO NODE FAILURE"),
    ("hardware_fault", r"NVRM: Xid|uncorrectable ECC|ECC error|fallen off the bus|NVLink.{0,40}(?:error|fault)"),
    ("nan", r"found NaN|Unexpected result nan|\bNaN\b.{0,40}(?:loss|grad)|number of nan iterations:\s*[1-9]"),
    ("backend_missing", r"ModuleNotFoundError|ImportError|No module named|undefined symbol|cannot open shared object"),
    ("hang", r"Watchdog caught collective|DeepEP.{0,40}time-?out|collective operation timeout"),
    ("launch_error", r"AssertionError|error: (?:argument|unrecognized|the following)|unrecognized arguments"),
)  # fmt: skip
"""What a line says of an end; what the scheduler and the hardware say comes first, since they say nothing of the
recipe. Formats: NVIDIA/Megatron-LM and PyTorch messages, slurmstepd, the NVIDIA kernel driver."""

_STATUS = {
    "preempted": "preempted",
    "timeout": "time_limit",
    "node_failure": "node_failure",
    "diverged": "nan",
    "hang": "hang",
    "crash": "launch_error",
    "invalid": "launch_error",
}
"""What a status alone says; a crash without a telling line is the launch's fault until something else is known."""


def endings(report: RunReport, log: TrainingLog | None, lines: Sequence[str]) -> Iterator[Symptom]:
    """How the run ended, where it did not end well and not for lack of memory; at most one symptom, and NaN.

    Args:
        report: its status counts where no line tells more.
        log: may say that iterations were skipped.
        lines: the line that ended the run and any around it.
    """
    name, why = _end(report, lines)
    if name is not None:
        yield Symptom(name, why, LIKELY)
    if name != "nan":
        yield from _not_numbers(report, log)


def _end(report: RunReport, lines: Sequence[str]) -> tuple[str | None, str]:
    for name, pattern in _WORDS:
        line = next((line for line in lines if re.search(pattern, line)), None)
        if line is not None:
            return name, f'the run ended with "{_short(line)}"'
    return _STATUS.get(report.status), _short(report.message) or f"the run ended as {report.status}"


def _not_numbers(report: RunReport, log: TrainingLog | None) -> Iterator[Symptom]:
    """A loss or a gradient norm that is no number, in a run that went on."""
    steps = () if log is None else log.steps
    series = [("loss", report.loss), ("gradient norm", report.grad_norm)]
    series += [("loss", tuple(s.loss for s in steps if s.loss is not None))]
    for what, values in series:
        at = next((step for step, value in enumerate(values, start=1) if not math.isfinite(value)), None)
        if at is not None:
            yield Symptom("nan", f"the {what} of step {at} is no number", LIKELY)
            return
