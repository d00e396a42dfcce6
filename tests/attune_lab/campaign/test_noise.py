"""The noise band against simulation and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.campaign.noise import FLOOR, gain_interval, noise_band, payback_hours
from attune_lab.contracts import RunReport


def _run(times) -> RunReport:
    return RunReport(
        label="x", status="ok", provenance="simulated", steps=len(times) + 3, step_times_s=(9.0, 9.0, 9.0, *times)
    )


def test_quiet_runs_have_the_floor() -> None:
    assert noise_band([_run([1.0] * 17)] * 2).of(17) == FLOOR


def test_within_run_part_is_the_two_sample_t_interval() -> None:
    times = [0.9, 1.1] * 10
    band = noise_band([_run(times)])
    sd = math.sqrt(20 * 0.1**2 / 19)
    assert band.step_sd == pytest.approx(sd)
    assert band.of(5) == pytest.approx(2.0930 * sd * math.sqrt(1 / 5 + 1 / 20), rel=1e-4)  # t(0.975, 19) of any table


def test_between_run_part_is_the_range_method_for_two_runs() -> None:
    band = noise_band([_run([0.98] * 17), _run([1.02] * 17)])
    assert band.run_sd == pytest.approx(0.04 / 1.128, rel=1e-3)  # d2(2) = 1.128 of any table of control charts
    assert band.of(17) == pytest.approx(1.95996 * band.run_sd * math.sqrt(1.5), rel=1e-5)


def test_a_run_without_timed_steps_is_refused() -> None:
    for runs in ([], [_run([])]):
        with pytest.raises(ValueError, match="timed steps"):
            noise_band(runs)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=17), st.floats(0.01, 1000))
def test_the_band_does_not_depend_on_the_unit_of_time(times: list[float], unit: float) -> None:
    band, scaled = noise_band([_run(times)]), noise_band([_run([t * unit for t in times])])
    assert scaled.of(5) == pytest.approx(band.of(5), rel=1e-6)


def test_white_noise_leaves_the_band_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(400):
        base = [_run(list(1 + 0.05 * rng.standard_normal(17))) for _ in range(2)]
        band = noise_band(base).of(17)
        mean = np.mean([run.mean_step_time_s for run in base])
        outside += abs(np.mean(1 + 0.05 * rng.standard_normal(17)) / mean - 1) > band
    assert outside / 400 <= 0.05


@given(st.floats(-0.5, 3), st.floats(0.001, 0.2))
def test_the_interval_holds_the_gain(gain: float, band: float) -> None:
    low, high = gain_interval(gain, band)
    assert low < gain < high


@given(st.floats(0.1, 1e6), st.integers(1, 10_000), st.floats(0.005, 5))
def test_after_the_payback_the_saved_gpu_hours_equal_the_spent_ones(spent: float, n_gpus: int, gain: float) -> None:
    hours = payback_hours(spent, n_gpus, gain)
    assert hours is not None
    work_in_baseline_hours = hours * (1 + gain)
    assert n_gpus * (work_in_baseline_hours - hours) == pytest.approx(spent)


def test_without_a_gain_nothing_pays_back() -> None:
    assert payback_hours(10, 8, 0) is None
    assert payback_hours(10, 8, -0.1) is None
