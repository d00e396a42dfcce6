"""Recipes as keys: equal ones have equal hashes."""

from hypothesis import given
from hypothesis import strategies as st

from attune_lab.recipe import Recipe

VALUES = st.one_of(st.booleans(), st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.5, "full", ("a", "b")]))
RECIPES = st.builds(
    Recipe,
    st.just("megatron-lm"),
    st.dictionaries(st.sampled_from(["tp", "mbs"]), VALUES),
    st.dictionaries(st.just("A"), st.sampled_from("12")),
)


@given(RECIPES, RECIPES)
def test_equal_recipes_have_equal_hashes(one, other):
    assert hash(one) == hash(Recipe.from_canonical(one.canonical()))
    assert (one != other) or hash(one) == hash(other)
    assert len({one, other}) == (1 if one == other else 2)


def test_another_setting_is_another_key():
    one = Recipe("megatron-lm", {"tp": 1})
    assert {one: "here"}.get(one.with_settings({"tp": 2})) is None
