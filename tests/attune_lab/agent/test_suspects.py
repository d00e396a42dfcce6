"""Causes of failures: found when runs single them out, and never laid on what ran."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.agent.suspects import Suspects

CHOICES = {
    "tp": (1, 2, 4),
    "dispatcher": ("alltoall", "deepep", "hybridep"),
    "overlap": (False, True),
    "fused": (False, True),
}
EVERY = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]
CAUSES = [{"dispatcher": "hybridep"}, {"overlap": True}, {"overlap": True, "dispatcher": "deepep"}]


def has(values, cause) -> bool:
    return all(values[key] == value for key, value in cause.items())


def told(cause, order) -> Suspects:
    suspects = Suspects()
    for number in order:
        values = EVERY[number]
        if has(values, cause):
            suspects.failed("crash", values)
        else:
            suspects.sound(values)
    return suspects


def test_nothing_is_suspect_before_a_failure() -> None:
    suspects = Suspects()
    suspects.sound(EVERY[0])
    assert not suspects
    assert suspects.chance(EVERY) == pytest.approx([1.0] * len(EVERY))


@given(cause=st.sampled_from(CAUSES), order=st.permutations(range(len(EVERY))))
def test_with_every_recipe_told_the_cause_is_known(cause, order) -> None:
    chances = told(cause, order).chance(EVERY)
    for values, chance in zip(EVERY, chances, strict=True):
        assert chance == pytest.approx(0.0 if has(values, cause) else 1.0, abs=0.05)


@given(cause=st.sampled_from(CAUSES), order=st.lists(st.sampled_from(range(len(EVERY))), max_size=8))
def test_what_ran_is_sound_and_what_failed_is_not(cause, order) -> None:
    suspects = told(cause, order)
    for number in order:
        (chance,) = suspects.chance([EVERY[number]])
        assert 0.0 <= chance <= 1.0
        assert chance == pytest.approx(0.0 if has(EVERY[number], cause) else 1.0, abs=1e-9)


def test_a_switch_is_more_suspect_than_a_size() -> None:
    suspects = Suspects()
    plain = {"tp": 1, "dispatcher": "alltoall", "overlap": False, "fused": False}
    suspects.sound(plain)
    suspects.failed("hang", {**plain, "tp": 4, "overlap": True})
    larger, hidden = suspects.chance([{**plain, "tp": 4}, {**plain, "overlap": True}])
    assert hidden < 0.3 < larger
    assert suspects.likeliest("hang") == "overlap on"


def test_kinds_of_failure_have_causes_of_their_own() -> None:
    suspects = Suspects()
    plain = {"tp": 1, "dispatcher": "alltoall", "overlap": False, "fused": False}
    suspects.sound(plain)
    suspects.failed("hang", {**plain, "overlap": True})
    suspects.failed("scaled gradients", {**plain, "dispatcher": "hybridep"})
    assert suspects.likeliest("scaled gradients") == "dispatcher hybridep"
    assert max(suspects.chance([{**plain, "overlap": True}, {**plain, "dispatcher": "hybridep"}])) < 0.1
