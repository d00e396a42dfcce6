"""What a change did, against what was expected of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import RunReport
from attune_lab.diagnosis import after_change


def run(step_s: float, **fields) -> RunReport:
    given = {"label": "1", "status": "ok", "provenance": "measured", "steps": 8, "tokens_per_step": 1000, **fields}
    return RunReport(step_times_s=(step_s,) * 8, **given)


def names(before: RunReport, after: RunReport, **known) -> list[str]:
    return [symptom.name for symptom in after_change(before, after, **known)]


def test_a_gain_that_was_expected_says_nothing():
    assert names(run(10), run(8), expected=0.22) == []


def test_a_gain_that_nothing_explains():
    found = after_change(run(10), run(8), expected=0.0)
    assert [symptom.name for symptom in found] == ["suspicious_speedup"]
    assert found[0].at_stake == pytest.approx(0.2)
    assert names(run(10), run(9.9), expected=0.0) == []  # inside the noise
    assert names(run(10), run(8)) == []  # nobody expected anything


def test_no_run_reaches_that_mfu():
    assert names(run(10), run(9.8, mfu=0.9)) == ["suspicious_speedup"]


def test_a_change_without_effect():
    found = after_change(run(10), run(9.99), expected=0.25)
    assert [symptom.name for symptom in found] == ["no_gain_after_change"]
    assert found[0].at_stake == pytest.approx(0.2)
    assert names(run(10), run(9), expected=0.25) == []


def test_the_same_recipe_slower():
    assert names(run(10), run(11.5), same_recipe=True) == ["straggler"]
    other = run(11.5, versions={"nccl": "2.28"})
    assert names(run(10, versions={"nccl": "2.27"}), other, same_recipe=True) == ["unexplained_regression"]
    assert names(run(10), run(10.1), same_recipe=True) == []


def test_batches_of_two_sizes_are_compared_by_tokens():
    assert names(run(10), run(20, tokens_per_step=2000), same_recipe=True) == []


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.one_of(st.none(), st.floats(-0.9, 9)), st.floats(1e-3, 0.2))
def test_any_pair_is_told(before, after, expected, band):
    for same in (False, True):
        found = after_change(run(before), run(after), expected=expected, band=band, same_recipe=same)
        assert all(0 <= symptom.at_stake <= 1 for symptom in found)


def test_runs_without_steps_say_nothing():
    empty = RunReport(label="1", status="oom", provenance="measured", steps=8)
    assert after_change(empty, run(1), expected=1.0) == after_change(run(1), empty, expected=1.0) == ()
