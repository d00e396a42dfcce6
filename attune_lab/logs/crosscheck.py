"""What a log claims against what we timed ourselves: only our own timing ever counts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from attune_lab.contracts import RunReport
from attune_lab.logs.contract import LoggedStep, TrainingLog

TOLERANCE = 0.02
"""Agreement of medians: printed digits and what lies between the two clocks are far less."""

STEP_TOLERANCE = 0.25
"""Agreement of a single step: a step may end on one clock and wait on the other for a slow rank or a print."""

PRINTED_S = 1e-3
"""Seconds that rounding of the print may hide."""


def cross_check(report: RunReport, log: TrainingLog) -> tuple[str, ...]:
    """What the log claims of a run that its report does not bear out, one sentence each; empty where they agree.

    Args:
        report: our own timing; no figure of it comes from the log, and none is changed here.
        log: the log of the same run, as read.
    """
    return tuple(_discrepancies(report, log))


def _discrepancies(report: RunReport, log: TrainingLog) -> Iterator[str]:
    ran = len(report.step_times_s)
    beyond = [step.step for step in log.steps if step.step > ran]
    if beyond:
        yield f"the log prints step {beyond[-1]}, but {ran} steps were timed"
    if log.restarts:
        yield f"the log goes back to an earlier step {log.restarts} times within one run"
    yield from _times(report, log)
    claimed = [s.tokens_per_s_per_gpu for s in log.steps[report.warmup_steps :] if s.tokens_per_s_per_gpu is not None]
    ours = report.tokens_per_s_per_gpu
    if claimed and ours is not None and not _agree(statistics.median(claimed), ours, TOLERANCE):
        yield _said(
            f"{statistics.median(claimed):,.0f} tokens/s/GPU", f"{ours:,.0f}", statistics.median(claimed) / ours
        )


def _times(report: RunReport, log: TrainingLog) -> Iterator[str]:
    """Discrepancies of step times: of the median after the warm-up, and of the step that is furthest off."""
    compared = [
        (step, step.step_time_s, ours)
        for before, step in zip((None, *log.steps), log.steps, strict=False)
        if step.step_time_s is not None and (ours := _timed(report, before, step)) is not None
    ]
    timed = [(claim, ours) for step, claim, ours in compared if step.step > report.warmup_steps]
    if timed:
        claim, ours = statistics.median(c for c, _ in timed), statistics.median(o for _, o in timed)
        if not _agree(claim, ours, TOLERANCE):
            yield _said(f"{claim:.4g} s a step", f"{ours:.4g} s", claim / ours)
            return
    off = [(step, claim, ours) for step, claim, ours in compared if not _agree(claim, ours, STEP_TOLERANCE)]
    if off:
        step, claim, ours = max(off, key=lambda item: abs(item[1] / item[2] - 1))
        yield _said(f"{claim:.4g} s for step {step.step}", f"{ours:.4g} s", claim / ours)


def _timed(report: RunReport, before: LoggedStep | None, step: LoggedStep) -> float | None:
    """Our mean over the steps that a line stands for; None where we did not time them all."""
    first = before.step if before else 0
    ours = report.step_times_s[first : step.step]
    return statistics.fmean(ours) if len(ours) == step.step - first and min(ours) > 0 else None


def _agree(claim: float, ours: float, tolerance: float) -> bool:
    return abs(claim - ours) <= tolerance * ours + PRINTED_S


def _said(claim: str, ours: str, ratio: float) -> str:
    return f"the log claims {claim}, our own timing says {ours} ({ratio:.2f} times); ours counts"
