"""The cause of a failure is found among what the failed share and the others do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import Estimate
from attune_lab.recipe import Recipe
from baselines.common.causes import Causes, traits
from baselines.common.pricelist import Priced

FLAGS = ("a", "b", "c", "d", "e")


def recipe_with(**values):
    values = {**dict.fromkeys(FLAGS, False), "tp": 1, **values}
    estimate = Estimate(1.0, 1.0, 1.0, 2.0, {}, {})
    return Priced(Recipe("megatron-lm", values), values, estimate)


def test_traits_say_whether_a_size_is_more_than_one() -> None:
    assert ("tp > 1", True) in traits({"tp": 4})
    assert ("tp > 1", False) in traits({"tp": 1})


def test_nothing_is_suspected_before_a_failure() -> None:
    causes = Causes()
    causes.survived(recipe_with(a=True))
    assert causes.chance([recipe_with(b=True)]).tolist() == [1.0]


def test_a_recipe_with_all_that_the_failed_share_is_doomed() -> None:
    causes = Causes()
    causes.survived(recipe_with())
    causes.failed("no", recipe_with(a=True, b=True))
    causes.failed("no", recipe_with(a=True, c=True))
    assert causes.chance([recipe_with(a=True, d=True)])[0] < 0.5
    assert causes.chance([recipe_with(a=True, b=True, c=True)])[0] < 0.3


def test_a_recipe_that_is_part_of_one_that_ran_is_safe() -> None:
    causes = Causes()
    causes.survived(recipe_with())
    causes.failed("no", recipe_with(a=True, b=True))
    causes.survived(recipe_with(a=True))
    assert causes.chance([recipe_with(a=True)])[0] == pytest.approx(1.0)
    assert causes.chance([recipe_with(a=True, b=True)])[0] < causes.chance([recipe_with(b=True)])[0] < 1.0


def test_two_reasons_are_two_causes() -> None:
    causes = Causes()
    causes.survived(recipe_with())
    causes.failed("first", recipe_with(a=True))
    causes.failed("second", recipe_with(b=True))
    either = causes.chance([recipe_with(a=True), recipe_with(b=True)])
    assert either.max() < 0.2


@settings(max_examples=40, deadline=None)
@given(
    cause=st.sets(st.sampled_from(FLAGS), min_size=1, max_size=2),
    seen=st.lists(st.sets(st.sampled_from(FLAGS)), min_size=1, max_size=12),
    asked=st.sets(st.sampled_from(FLAGS)),
)
def test_the_true_cause_is_never_cleared(cause, seen, asked) -> None:
    """A recipe that has the cause is never called safe once another has failed of it."""
    causes = Causes()
    for flags in seen:
        one = recipe_with(**dict.fromkeys(flags, True))
        if cause <= flags:
            causes.failed("no", one)
        else:
            causes.survived(one)
    chance = causes.chance([recipe_with(**dict.fromkeys(asked, True))])[0]
    assert 0.0 <= chance <= 1.0
    if cause <= asked and any(cause <= flags for flags in seen):
        assert chance < 1.0
