"""The paired test: sizes of real differences pass, faults do not, and doubt is called doubt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.gate import Change, Check, Curve, judge
from attune_lab.gate.convergence import check
from attune_lab.gate.loss_tests import fit_envelope, slope_errors

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
    once = np.where(STEPS == 1, 1.0976, 1.0)
    assert verdict(curve(norm=once)) == "inconclusive"
    assert verdict(curve(norm=once), *[curve(norm=1.001)] * 3) == "reject"
    assert verdict(curve(norm=1.0976)) == "reject"  # at every step: rounding does not keep to one side


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


def test_an_unstable_last_step_of_the_baseline_is_no_fault_of_the_candidate():
    """At a high learning rate a model may jump by an eighth, and rounding then parts two runs by as much at once."""
    jump = np.append(LOSS[:-1], 1.12 * LOSS[-2])
    assert verdict(curve(loss=np.append(LOSS[:-1] * (1 + 5e-5), 1.25 * LOSS[-2])), baseline=curve(loss=jump)) == "pass"


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


def test_a_norm_that_only_one_run_recorded_is_a_question():
    bare = Curve(STEPS, LOSS, np.zeros(20))
    assert verdict(bare) == "inconclusive"
    assert verdict(curve(), baseline=bare) == "inconclusive"
    assert verdict(bare, baseline=bare) == "pass"


def test_a_candidate_that_leaves_steps_out_is_a_question():
    assert verdict(curve().at(np.delete(STEPS, 9))) == "inconclusive"
    assert verdict(curve().at(STEPS[::5]), baseline=curve().at(STEPS[::5])) == "inconclusive"  # 4 points are no curve
    assert verdict(curve().at(STEPS[::2]), baseline=curve().at(STEPS[::2])) == "pass"


def test_curves_that_agree_in_every_digit_are_remarked_on_where_sums_were_reordered():
    for change, remarks in ((Change.SAME_KERNELS, 0), (Change.REORDERED, 1)):
        names = [c.name for c in check(curve(), curve(), change=change)]
        assert names.count("convergence.identical") == remarks


def test_neither_the_candidate_as_its_own_twin_nor_a_faulty_twin_opens_the_gate():
    fault = -7e-3 * (STEPS - 1) / 19
    assert verdict(curve(fault), curve(fault)) == "reject"
    assert verdict(curve(fault), curve(20 * fault)) == "inconclusive"


# Four-layer models trained on a CPU for 20 steps against one process: largest and mean loss difference, and the
# factor on the gradient norm of step 1.
TRAINED = {
    "data parallel": (5.6e-8, 2.6e-8, 1.0, "pass"),
    "tensor parallel": (1.7e-7, 5.8e-8, 1.0, "pass"),
    "recomputed": (0.0, 0.0, 1.0, "pass"),
    "bfloat16": (8.9e-5, 2.4e-5, 1.0011, "pass"),
    "learning rate doubled": (1.3e-1, 6.8e-2, 1.0, "reject"),
    "same data on both ranks": (4.5e-2, 7.6e-3, 1.13, "reject"),
    "gradients not reduced": (3.9e-3, 1.4e-3, 1.13, "reject"),
    "loss divided by the wrong count": (5.1e-7, 2.3e-7, 4.0, "reject"),
}


@pytest.mark.parametrize("first", [0.0, 1.0], ids=["equal start", "step 1 off by the mean"])
@pytest.mark.parametrize("twins", [0, 1, 3])
@pytest.mark.parametrize("case", TRAINED)
def test_differences_of_real_training_are_told_from_faults(case, twins, first):
    largest, mean, norm, expected = TRAINED[case]
    power = max(largest / mean - 1, 0.0) if mean else 0.0  # a ramp of this power has the mean and the largest
    ramp = largest * (STEPS / 20) ** power
    ramp[0] = first * mean if expected == "pass" else 0.0
    others = [curve(f * 1.7e-7 * STEPS / 20) for f in (1, -1, 0.5)][:twins]
    assert verdict(curve(ramp, norm), *others) == expected


# What is known of the start, other seeds, and norms over all steps.
NOISE = 2e-5 * np.random.default_rng(3).normal(size=20)


def outcome(relative, **known):
    return judge([], check(curve(), curve(relative), **known)).verdict


def test_runs_from_different_weights_are_not_compared_and_never_pass_by_a_wider_band():
    for gap in (5e-5, 3e-3, 0.2):
        checks = check(curve(), curve(gap), start="The layout differs")
        assert [c.name for c in checks] == ["convergence.start"]
        assert "seed checkpoint" in checks[0].reason
    assert outcome(3e-3) == "reject"


def test_an_equal_first_step_shows_that_the_weights_were_the_same():
    drift = np.where(STEPS == 1, 0.0, NOISE)
    fault = np.where(STEPS == 1, 0.0, 2e-2)
    assert outcome(drift, start="The layout differs") == "pass"
    assert outcome(fault, start="The layout differs") == "reject"


def test_other_dropout_masks_widen_the_band_unless_step_1_shows_the_same():
    gap = 1e-3 * np.where(STEPS % 2, 1, -1)
    assert outcome(gap) == "reject"
    assert outcome(gap, masks="Another attention kernel") == "pass"
    assert outcome(np.where(STEPS == 1, 0.0, 4 * gap), masks="Another attention kernel") == "reject"


def test_further_seeds_average_noise_away_and_keep_a_fault():
    rng = np.random.default_rng(1)
    noise = [2.6e-4 * rng.choice([-1, 1]) * np.ones(20) for _ in range(2)]
    one = judge([], check(curve(), curve(noise[0]))).verdict
    both = judge([], check(curve(), curve(noise[0]), seeds=[seed(-noise[0])])).verdict
    fault = judge([], check(curve(), curve(noise[0]), seeds=[seed(noise[0] * 1.1)])).verdict
    assert (one, both, fault) == ("reject", "pass", "reject")


def test_no_average_makes_good_what_one_pair_shows_far_outside():
    """Pairs without a difference, however many, may not dilute a fault; nor may a pair with the opposite one."""
    fault = 1e-2 * (STEPS - 1) / 19
    seeds = [seed(0.0 * STEPS, number) for number in range(60)]
    assert judge([], check(curve(), curve(fault), seeds=seeds)).verdict == "reject"
    assert judge([], check(curve(), curve(fault), seeds=[seed(-fault)])).verdict == "reject"


@pytest.mark.parametrize("turned", [True, False])
def test_another_seed_is_not_the_same_runs_again(turned):
    one, other = curve(), curve(3e-5 * np.sin(STEPS))
    pair = (other, one) if turned else (one, one)
    (refused,) = check(one, other, seeds=[pair])
    assert (refused.name, refused.outcome) == ("convergence.seeds", "inconclusive")
    assert check(one, other, seeds=[seed(1e-6 * STEPS), seed(1e-6 * STEPS)])[0].name == "convergence.seeds"


def seed(difference, number=0):
    """Baseline and candidate of another seed: other losses, and this difference between them."""
    own = 0.02 * np.sin((3.0 + number) * STEPS)
    return curve(own), curve(own + difference)


def test_a_twin_that_shares_the_fault_opens_no_gate():
    """Its loss agrees, as Adam hides the scale of the gradients; or it is the candidate's with a little noise."""
    scaled = [curve(1e-5 * np.sin(STEPS + i), 2.0) for i in range(3)]
    assert "twins" in check(curve(), curve(norm=2.0), scaled)[0].name
    fault = 7e-3 * (STEPS - 1) / 19
    noisy = [curve(fault + 1e-5 * np.cos(STEPS + i)) for i in range(3)]
    assert judge([], check(curve(), curve(fault), noisy)).verdict == "reject"


def test_one_twin_does_not_vouch_for_losses_far_outside_the_limits():
    fault = 1e-2 * (STEPS - 1) / 19
    assert judge([], check(curve(), curve(fault), [curve(-fault)])).verdict == "inconclusive"
    assert judge([], check(curve(), curve(fault), [curve(-fault * f) for f in (0.8, 0.9, 1.0)])).verdict == "pass"


def test_runs_that_agree_at_step_1_to_the_last_digit_are_held_to_less():
    """A difference inside the band of other kernels, where the first step shows that no kernel rounds differently."""
    fault = -5.5e-4 * (STEPS - 1) / 19
    assert outcome(fault) == "reject"
    rounded = fault + np.where(STEPS == 1, 3e-5, 0.0)
    assert judge([], check(curve(), curve(rounded, 1.0004))).verdict != "reject"


NAMED = {
    2.0: "gradient scale: 2x",
    0.25: "gradient scale: 1/4 of",
    1.414: "noise of 1/2 of the batch",
    1.2: "scaled up",
    0.8: "scaled down",
    0.0: "lost",
}


@pytest.mark.parametrize("factor", NAMED)
def test_a_factor_on_the_gradient_norm_names_its_fault_family(factor):
    found = next(c for c in check(curve(), curve(norm=factor)) if c.name == "convergence.grad_norm")
    assert found.outcome == "reject"
    assert NAMED[factor] in found.family


@pytest.mark.parametrize(("factor", "expected"), [(1.005, "pass"), (1.02, "inconclusive"), (1.05, "reject")])
def test_a_small_factor_proves_a_fault_only_if_it_stays(factor, expected):
    assert verdict(curve(norm=factor)) == expected


def test_a_norm_that_wanders_later_is_no_fault_and_one_that_stays_away_is():
    wander = 1 + 0.01 * np.where(STEPS % 2, 1, -1) * (STEPS > 1)
    away = np.where(STEPS > 2, 0.9, 1.0)
    assert verdict(curve(norm=wander)) == "pass"
    assert verdict(curve(norm=away)) == "reject"


@given(scale=st.floats(1e-6, 1e-3), seed=st.integers(0, 2**32 - 1))
def test_noise_that_goes_both_ways_has_no_trend_and_a_ramp_has(scale, seed):
    noise = scale * np.random.default_rng(seed).normal(size=20)
    assert abs(slope_errors(STEPS, 100 * scale * STEPS + noise)) > 4
    alternating = scale * np.where(STEPS % 2, 1, -1)
    assert abs(slope_errors(STEPS, alternating)) < 4
