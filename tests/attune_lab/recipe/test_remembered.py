"""Answers about recipes are computed once, for the last few recipes."""

import pytest

from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.remembered import remembered


def recipe(tp: int) -> Recipe:
    return Recipe("megatron-lm", {"tp": tp})


def test_equal_recipes_are_asked_about_once_and_old_ones_are_forgotten():
    asked = []

    @remembered(last=2)
    def size(of: Recipe, factor: int = 1) -> int:
        asked.append(of.settings["tp"])
        return factor * of.settings["tp"]

    assert [size(recipe(1)), size(recipe(1)), size(recipe(2)), size(recipe(2), factor=3)] == [1, 1, 2, 6]
    assert asked == [1, 2, 2]
    assert size(recipe(1)) == 1  # two others came since
    assert asked == [1, 2, 2, 1]


def test_values_that_compare_equal_but_are_written_differently_are_different_recipes():
    written = remembered(last=4)(lambda of: repr(of.settings["tp"]))
    assert [written(recipe(value)) for value in (1, True, 1.0)] == ["1", "True", "1.0"]


def test_what_was_refused_is_refused_again():
    asked = []

    @remembered(last=2)
    def refuse(of: Recipe) -> None:
        asked.append(of)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            refuse(recipe(1))
    assert len(asked) == 2
