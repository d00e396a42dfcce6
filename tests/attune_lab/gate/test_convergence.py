"""The paired test: sizes of real differences pass, faults do not, and doubt is called doubt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.gate import Change, Check, Curve, judge
from attune_lab.gate.convergence import check, fit_envelope

STEPS = np.arange(1, 21)
LOSS = 12.0 - 2.5 * np.log(STEPS)


def curve(relative=0.0, norm=1.0, loss=LOSS, quantum=0.0):
    norms = {"grad_norm": norm * np.full(STEPS.size, 3.0)}
    return Curve(STEPS, loss * np.exp(relative * np.ones(STEPS.size)), np.full(STEPS.size, quantum), norms)


def verdict(candidate, *twins, baseline=None, change=None):
    return judge([], check(baseline or curve(), candidate, twins, change=change)).verdict


def deciding(checks: list[Check]) -> set[str]:
    return {c.name.removeprefix("convergence.") for c in checks if c.outcome != "pass"}


def test_the_same_curve_passes():
    assert verdict(curve()) == "pass"


@given(seed=st.integers(0, 2**32 - 1))
def test_a_drift_of_the_measured_size_passes(seed):
    """Random walks that end at 1e-3 with a mean below 3e-4: what another summation order does."""
    walk = np.cumsum(np.random.default_rng(seed).normal(size=STEPS.size)) * 1e-5
    assert verdict(curve(walk - walk[0]), change=Change.REORDERED) == "pass"


# Sizes measured on a small MoE with injected faults: (relative loss difference per step, gradient-norm factor).
FAULTS = {
    "other loss at step 1": (1e-3 * np.ones(20), 1.0, "step_1"),
    "one-sided ramp": (8e-4 * STEPS / 20, 1.0, "bias"),
    "learning rate x 1.1": (-7e-3 * (STEPS - 1) / 19, 1.0, "envelope"),
    "doubled expert gradients": (np.zeros(20), 2.0, "grad_norm"),
    "gradients lost": (np.zeros(20), 0.0, "grad_norm"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_rejected_by_the_test_meant_for_them(fault):
    relative, norm, name = FAULTS[fault]
    checks = check(curve(), curve(relative, norm))
    assert judge([], checks).verdict == "reject"
    assert name in deciding(checks)


def test_a_gradient_norm_between_rounding_and_proof_is_left_open_until_twins_decide():
    assert verdict(curve(norm=1.0976)) == "inconclusive"
    assert verdict(curve(norm=1.0976), *[curve(norm=1.001)] * 3) == "reject"


def test_divergence_belongs_to_whoever_diverged():
    broken = np.where(STEPS == 7, np.nan, LOSS)
    assert verdict(curve(loss=broken)) == "reject"
    assert verdict(curve(), baseline=curve(loss=broken)) == "inconclusive"
    assert verdict(curve(), curve(loss=broken)) == "inconclusive"


def test_a_spike_of_the_baseline_ends_the_comparison_and_one_of_the_candidate_does_not():
    spike = np.where(STEPS >= 15, 2 * LOSS, LOSS)
    wild = np.where(STEPS >= 15, 3 * LOSS, LOSS)
    assert verdict(curve(loss=wild), baseline=curve(loss=spike)) == "pass"
    assert verdict(curve(loss=spike)) == "reject"


def test_too_little_evidence_is_inconclusive():
    short = curve().at(STEPS[:4])
    assert verdict(short) == "inconclusive"
    assert verdict(curve().at(STEPS[:12])) == "inconclusive"
    assert verdict(Curve(STEPS + 100, LOSS, np.zeros(20))) == "inconclusive"
    assert judge([], None).verdict == "inconclusive"


def test_coarse_printing_widens_the_band_and_is_no_pass():
    rounded = np.round(LOSS, 1)
    assert verdict(curve(loss=rounded, quantum=0.1)) == "inconclusive"
    assert verdict(curve(loss=np.round(LOSS, 5), quantum=1e-5)) == "pass"


def test_twins_widen_the_band_by_three_and_one_odd_twin_does_not_open_it():
    drift = 1.2e-3 * np.sqrt(STEPS / 20) * np.where(STEPS % 2, 1, -1)
    drift[0] = 0.0
    twins = [curve(f * drift) for f in (1.0, -0.8, 0.9)]
    assert verdict(curve(2.5 * drift)) == "reject"
    assert verdict(curve(2.5 * drift), *twins) == "pass"
    assert verdict(curve(7 * drift), *twins) == "reject"


@given(scale=st.floats(1e-6, 1e-2), power=st.floats(0.0, 1.5))
def test_the_envelope_recovers_a_power_law(scale, power):
    a, b = fit_envelope(STEPS, scale * STEPS.astype(float) ** power)
    assert a == pytest.approx(scale, rel=1e-6)
    assert b == pytest.approx(power, abs=1e-6)


@given(spread=st.lists(st.floats(0, 1e-2), min_size=5, max_size=30))
def test_the_envelope_covers_what_it_was_fitted_to(spread):
    steps = np.arange(1, len(spread) + 1)
    a, b = fit_envelope(steps, np.array(spread))
    assert np.all(np.array(spread) <= a * steps.astype(float) ** b * (1 + 1e-9))


def test_a_norm_printed_with_few_digits_is_not_held_to_more():
    def printed(norm, quanta):
        return Curve(STEPS, LOSS, np.zeros(20), {"grad_norm": np.full(20, norm)}, quanta)

    coarse = {"grad_norm": np.full(20, 1e-3)}
    for quanta, expected in ((coarse, "pass"), ({}, "inconclusive")):
        checks = check(printed(0.050, quanta), printed(0.051, quanta), change=Change.SAME_KERNELS)
        assert judge([], checks).verdict == expected
