"""Failures are told as finite values with a violated limit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attune_lab.contracts import Estimate
from baselines.common.history import History
from baselines.common.outcomes import UNKNOWN_VIOLATION, outcome
from tests.baselines.small_task import ended, small_task

ESTIMATE = Estimate(1.0, 1.0, 100e9, 80e9, {}, {})


def told(status, *, estimate=ESTIMATE, **changes):
    """The outcome of a recipe that ended so, after one recipe of 3 seconds and one of 2."""
    history, task = History(), small_task()
    for number, seconds in enumerate((3.0, 2.0)):
        history.record(task.baseline.with_settings({"mbs": 2 + number}), ended(f"{number}", "ok", seconds))
    report = ended("9", status, 5.0).model_copy(update=changes)
    return outcome(history, history.record(task.baseline, report), estimate, 8)


def test_a_run_is_told_with_its_time_and_the_memory_it_left():
    result = told("ok", gpu_hours=2.0)
    assert result.value == 5.0
    assert result.violations == {"memory": pytest.approx(-0.5)}
    assert result.violation == pytest.approx(-0.5)
    assert result.cost_s == 900
    assert result.notes == {"status": "ok", "gpu_hours": 2.0, "label": "9"}


@pytest.mark.parametrize(
    ("peaks", "predicted", "excess"),
    [((), 100e9, 0.25), ((120e9,), 100e9, 0.5), ((60e9,), 96e9, 0.2), ((), 60e9, UNKNOWN_VIOLATION)],
)
def test_out_of_memory_is_told_by_how_much(peaks, predicted, excess):
    result = told("oom", peak_memory_bytes=peaks, estimate=replace(ESTIMATE, peak_memory_bytes=predicted))
    assert result.value == 3.0
    assert result.violations == {"memory": pytest.approx(excess)}


@pytest.mark.parametrize(("status", "limit"), [("crash", "failure"), ("hang", "failure"), ("timeout", "time")])
def test_other_failures_have_a_limit_of_their_own(status, limit):
    result = told(status, peak_memory_bytes=(40e9,))
    assert result.value == 3.0
    assert result.violations == {"memory": pytest.approx(-0.5), limit: UNKNOWN_VIOLATION}
    assert result.violation == (UNKNOWN_VIOLATION if limit == "failure" else pytest.approx(-0.5))


def test_a_run_cut_off_for_being_slow_raises_the_worst_value():
    assert told("timeout", step_times_s=(9.0,) * 5).value == 9.0


def test_nothing_is_told_as_nan():
    nan = replace(ESTIMATE, step_time_s=math.nan, peak_memory_bytes=math.nan)
    history = History()
    trial = history.record(small_task().baseline, ended("0", "oom"))
    result = outcome(history, trial, nan, 8)
    assert (result.value, result.violations) == (1.0, {"memory": UNKNOWN_VIOLATION})
