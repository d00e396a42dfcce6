"""Curves that are broken, cut, copied or coarse: never a pass that nothing supports, never a rejection by accident."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.gate import Curve, judge
from attune_lab.gate.convergence import check
from attune_lab.gate.curves_io import read_curve

STEPS = np.arange(1, 21)
LOSS = 9.0 - 0.5 * np.log(STEPS) + 0.02 * np.sin(7.0 * STEPS)
CLOCK = tuple(f"2026-01-01 00:00:{step:02d} {900 + 13 * step % 37}.5" for step in STEPS)


def curve(loss=LOSS, norm=1.0, quantum=0.0, steps=STEPS, clock=()):
    return Curve(
        steps, np.array(loss), np.full(steps.size, quantum), {"grad_norm": norm * np.full(steps.size, 3.0)}, {}, clock
    )


def outcome(base, cand, **known):
    return judge([], check(base, cand, **known)).verdict


def rounding(seed=0, size=3e-5):
    """Losses of a run that differs by rounding."""
    rng = np.random.default_rng(seed)
    return LOSS * np.exp(size * rng.normal(size=STEPS.size))


def printed(loss, digits):
    return curve(np.round(loss, digits), quantum=10.0**-digits)


def test_a_rounded_run_passes_and_so_does_the_baseline_against_it():
    assert outcome(curve(), curve(rounding())) == "pass"
    assert outcome(curve(rounding()), curve()) == "pass"


@given(step=st.integers(0, 19), value=st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0]))
def test_a_broken_loss_never_passes(step, value):
    broken = LOSS.copy()
    broken[step] = value
    assert outcome(curve(), curve(broken)) in ("reject", "inconclusive")
    assert outcome(curve(broken), curve()) == "inconclusive"


@pytest.mark.parametrize(("value", "expected"), [(np.inf, "reject"), (np.nan, "inconclusive")])
def test_a_broken_gradient_norm_never_passes(value, expected):
    norm = np.where(STEPS == 7, value, 1.0)
    assert outcome(curve(), curve(norm=norm)) == expected


@given(kept=st.lists(st.integers(1, 20), min_size=1, max_size=19, unique=True))
def test_steps_left_out_never_hide_a_fault(kept):
    """A fault in every second step is either seen or asked about, whichever steps the candidate shows."""
    faulty = curve(LOSS * np.where(STEPS % 2 == 0, 1.02, 1.0)).at(np.sort(np.array(kept)))
    shown = outcome(curve(), faulty)
    regular = np.unique(np.diff(np.sort(np.array(kept)))[1:]).size <= 1
    assert shown in ("reject", "inconclusive") or regular


@given(stop=st.integers(1, 19))
def test_a_run_that_stops_early_is_asked_to_go_on(stop):
    assert outcome(curve(), curve(rounding()).at(STEPS[:stop])) == "inconclusive"
    assert outcome(curve().at(STEPS[:stop]), curve(rounding())) == "inconclusive"


def test_a_longer_run_is_compared_where_both_were():
    longer = np.arange(1, 41)
    loss = np.append(LOSS, np.full(20, LOSS[-1]))
    assert outcome(curve(), curve(loss, steps=longer)) == "pass"
    assert outcome(curve(loss, steps=longer), curve(rounding())) == "pass"


def test_a_regular_log_interval_is_no_gap():
    steps = np.array([1, 5, 10, 15, 20, 25])
    loss = np.append(LOSS, np.full(10, LOSS[-1]))
    full = curve(loss, steps=np.arange(1, 31))
    assert outcome(full, full.at(steps)) == "pass"
    assert outcome(full, full.at(np.delete(np.arange(1, 31), 9))) == "inconclusive"


def test_a_sparse_log_is_told_to_print_every_step():
    found = check(curve(), curve(rounding()).at(np.array([5, 10, 15, 20])))
    assert [c.outcome for c in found if "--log-interval 1" in c.reason] == ["inconclusive"]


@given(digits=st.integers(0, 2), seed=st.integers(0, 1000))
def test_coarse_losses_are_neither_rejected_nor_passed(digits, seed):
    assert outcome(printed(LOSS, digits), printed(rounding(seed), digits)) == "inconclusive"


@given(digits=st.integers(3, 7), seed=st.integers(0, 1000))
def test_printing_alone_is_never_rejected(digits, seed):
    assert outcome(printed(LOSS, digits), printed(rounding(seed), digits)) != "reject"
    assert outcome(curve(), printed(LOSS, digits)) != "reject"


def test_four_digits_pass_a_legitimate_run_and_still_show_a_large_fault():
    assert outcome(printed(LOSS, 3), printed(rounding(), 3)) == "pass"
    assert outcome(printed(LOSS, 3), printed(LOSS * np.exp(5e-3 * STEPS / 20), 3)) == "reject"


@pytest.mark.parametrize("loss", [LOSS, rounding(), LOSS * 1.01], ids=["exact", "noise added", "shifted up"])
def test_the_same_dates_and_step_times_are_a_copy_whatever_the_losses_say(loss):
    checks = check(curve(clock=CLOCK), curve(loss, clock=CLOCK))
    assert [c.name for c in checks] == ["convergence.copy"]
    assert judge([], checks).verdict == "inconclusive"


def test_clocks_that_differ_or_stand_still_prove_nothing():
    later = tuple(f"{text}7" for text in CLOCK)
    still = ("1000.0",) * 20
    assert outcome(curve(clock=CLOCK), curve(rounding(), clock=later)) == "pass"
    assert outcome(curve(clock=still), curve(rounding(), clock=still)) == "pass"


@pytest.mark.parametrize("shift", [-3, -1, 1, 2])
@pytest.mark.parametrize("digits", [3, 6])
def test_a_shifted_copy_is_named(shift, digits):
    later = curve(np.round(LOSS, digits), quantum=10.0**-digits, steps=STEPS + shift + 5)
    checks = check(curve(steps=STEPS + 5), later)
    assert checks[0].name == "convergence.copy"


def test_a_copied_twin_calibrates_nothing():
    fault = LOSS * np.exp(-7e-3 * (STEPS - 1) / 19)
    candidate = curve(fault, clock=CLOCK)
    twin = curve(fault * (1 + 1e-6), clock=CLOCK)
    assert judge([], check(curve(), candidate, [twin] * 3)).verdict == "reject"


def test_a_spike_from_random_weights_ends_the_comparison_in_both_runs():
    """Both runs are unstable around step 17; the spike does not come at the same step."""
    base = np.where(STEPS >= 18, 1.5 * LOSS, LOSS)
    assert outcome(curve(base), curve(np.where(STEPS >= 17, 1.7 * rounding(), rounding()))) == "pass"
    assert outcome(curve(base), curve(np.where(STEPS >= 3, 1.7 * LOSS, LOSS))) == "reject"
    assert outcome(curve(), curve(base)) == "reject"
    early = np.where(STEPS >= 7, 1.5 * LOSS, LOSS)
    assert outcome(curve(early), curve(rounding())) == "inconclusive"


@given(cut=st.floats(0.1, 1.0))
def test_a_cut_log_is_never_rejected(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("logs")
    texts = [
        "".join(
            f" iteration {i}/ 20 | elapsed time per iteration (ms): {t + i % 7}.{i} | lm loss: {x:.6E} | "
            "grad norm: 3.000 |\n"
            for i, x in enumerate(loss, 1)
        )
        for t, loss in ((900, LOSS), (800, rounding()))
    ]
    (folder / "a.log").write_text(texts[0])
    (folder / "b.log").write_text(texts[1][: int(cut * len(texts[1]))])
    verdict = outcome(read_curve(folder / "a.log"), read_curve(folder / "b.log"))
    assert verdict == ("pass" if cut == 1.0 else "inconclusive") or cut > 0.95
    assert verdict != "reject"


def test_runs_that_share_no_step_are_a_question():
    assert outcome(curve(), curve(steps=STEPS + 100)) == "inconclusive"


def test_a_resumed_run_is_compared_from_where_it_went_on():
    full = curve(np.append(LOSS, LOSS - 1.5), steps=np.arange(1, 41))
    assert outcome(full, full.at(np.arange(21, 41))) == "pass"
    worse = curve((LOSS - 1.5) * 1.05, steps=np.arange(21, 41))
    assert outcome(full, worse) == "reject"


@pytest.mark.parametrize("value", [0.0, 1e-9, 50.0, 1e300])
@given(step=st.integers(2, 20))
def test_one_step_with_another_gradient_is_a_question(step, value):
    """The median and the first step agree; clipping hides it from the loss."""
    assert outcome(curve(), curve(norm=np.where(step == STEPS, value, 1.0))) == "inconclusive"


def test_a_norm_below_zero_is_no_norm():
    assert outcome(curve(), curve(norm=np.where(STEPS == 9, -1.0, 1.0))) == "inconclusive"
