"""What only a series of steps shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import RunReport
from attune_lab.diagnosis import diagnose
from attune_lab.diagnosis.series import step_times
from attune_lab.logs import LoggedStep, TrainingLog, read_log

CALM = 10 * np.exp(0.003 * np.random.default_rng(0).normal(size=60))


def told(times, **known) -> dict[str, float]:
    return {symptom.name: symptom.at_stake for symptom in step_times([float(t) for t in times], known)}


def report(times=(), **fields) -> RunReport:
    given = {"label": "1", "status": "ok", "provenance": "measured", "steps": 60, "warmup_steps": 0, **fields}
    return RunReport(step_times_s=tuple(times), **given)


def logged(column: str, values, step_time_s: float | None = 10.0) -> TrainingLog:
    steps = (LoggedStep(i, step_time_s=step_time_s, other={column: float(v)}) for i, v in enumerate(values, start=1))
    return TrainingLog("megatron-lm", tuple(steps))


def test_a_calm_series_says_nothing():
    assert told(CALM) == {}


def test_one_accident_is_no_habit():
    times = CALM.copy()
    times[17] *= 3
    assert told(times) == {}


@pytest.mark.parametrize(("period", "workers", "name"), [
    (12, 2, "step_time_jitter"), (6, 6, "data_stall"), (2, 2, "data_stall"), (5, 6, "step_time_jitter"),
])  # fmt: skip
def test_the_period_says_whose_gaps_they_are(period, workers, name):
    times = CALM + 5.0 * (np.arange(60) % period == 1)
    found = told(times, num_workers=workers)
    assert list(found) == [name]
    gaps = np.ceil((60 - 1) / period)
    assert found[name] == pytest.approx(5 * gaps / times.sum(), rel=0.05)


def test_an_accident_does_not_hide_a_period():
    times = CALM + 5.0 * (np.arange(60) % 6 == 1)
    times[[2, 22]] *= 1.6  # one beside a late step, one between two
    assert list(told(times, num_workers=6)) == ["data_stall"]


def test_a_step_up_is_a_straggler_and_a_ramp_is_drift():
    assert list(told(CALM * np.where(np.arange(60) < 25, 1, 1.1))) == ["straggler"]
    assert list(told(CALM * np.linspace(1, 1.1, 60))) == ["step_time_drift"]
    assert told(CALM * np.linspace(1.1, 1, 60)) == {}  # becoming faster is no symptom


def test_what_a_straggler_costs():
    found = told(np.where(np.arange(60) < 30, 10.0, 12.0))
    assert found["straggler"] == pytest.approx(1 - 10 / 11)


def test_drift_without_balancing_is_the_experts():
    known = {"num_experts": 64, "ep": 8, "lb_type": "none", "aux_loss_coeff": 0.0}
    times = CALM * np.linspace(1, 1.2, 60)
    assert list(told(times, **known)) == ["expert_imbalance", "step_time_drift"]
    assert list(told(times, **{**known, "lb_type": "aux_loss", "aux_loss_coeff": 1e-3})) == ["step_time_drift"]
    assert list(told(times, **{**known, "expert_bias": True})) == ["step_time_drift"]


def test_waiting_for_data_by_the_timers_of_the_stacks():
    for column, value in (("batch-generator", 1500.0), ("data_loading(s)", 1.5), ("time_metrics/data_loading(%)", 15)):
        symptom = diagnose(report(), {}, logged(column, [value] * 20)).symptoms[0]
        assert symptom.name == "data_stall", column
        assert symptom.at_stake == pytest.approx(0.15)
        known = diagnose(report(), {}, logged(column, [value] * 20)).variables
        assert known["data_wait_frac"] == symptom.at_stake  # what a lesson's precondition asks for
    assert diagnose(report(), {}, logged("batch-generator", [15.0] * 20)).find(("data_stall",)) is None


def test_memory_that_grows_and_memory_that_warms_up():
    assert (
        diagnose(report(), {}, logged("MaxMemAllocated", np.linspace(40, 50, 40))).symptoms[0].name == "memory_growth"
    )
    warm = np.concatenate([np.linspace(20, 40, 5), np.full(40, 40.0)])
    assert diagnose(report(), {}, logged("MaxMemAllocated", warm)).find(("memory_growth",)) is None


def test_memory_that_grows_in_a_log_of_torchtitan():
    lines = [
        f"[titan] 2026-03-01 10:00:{10 + i} - root - INFO - step: {i}  loss: 8.0  grad_norm: 1.0  "
        f"memory: {40 + i / 4:.2f}GiB({50 + i / 4:.2f}%)  tps: 1,000  tflops: 100.00  mfu: 10.00%\n"
        for i in range(1, 41)
    ]
    assert diagnose(report(), {}, read_log("".join(lines))).symptoms[0].name == "memory_growth"


def test_the_stacks_own_straggler_line():
    log = TrainingLog("megatron-lm", (), round_trip_s={3: 1.0, 17: 1.25})
    symptom = diagnose(report(), {}, log).symptoms[0]
    assert (symptom.name, symptom.evidence) == ("straggler", "rank 17 takes 25.0% longer than rank 3")
    close = TrainingLog("megatron-lm", (), round_trip_s={3: 1.0, 17: 1.02})
    assert diagnose(report(), {}, close).find(("straggler",)) is None


def test_the_logs_steps_stand_in_where_we_timed_none():
    ramp = CALM * np.linspace(1, 1.2, 60)
    log = TrainingLog("hf-trainer", tuple(LoggedStep(i, step_time_s=float(t)) for i, t in enumerate(ramp, start=1)))
    assert diagnose(report(), {}, log).symptoms[0].name == "step_time_drift"
    assert diagnose(report(CALM), {}, log).find(("step_time_drift",)) is None  # our own timing comes first


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e4), min_size=0, max_size=50), st.floats(1e-3, 1e3))
def test_any_series_is_told_in_any_unit(times, unit):
    found, scaled = told(times, num_workers=2), told([unit * t for t in times], num_workers=2)
    assert all(0 <= stake <= 1 and math.isfinite(stake) for stake in found.values())
    assert set(found) == set(scaled) or len(set(times)) > 1  # ties of medians may fall either way in another unit
