"""Recipes as points, and the nearest legal recipe."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.common.points import Points
from tests.baselines.small_task import CLUSTER, small_task

TASK = small_task()
POINTS = Points(TASK)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_a_legal_recipe_is_the_recipe_of_its_point(seed):
    recipe = TASK.space.sample(np.random.default_rng(seed))
    assert POINTS.recipe(POINTS.point(recipe)).digest == recipe.digest


@given(st.fixed_dictionaries({key: st.sampled_from(values) for key, values in POINTS.choices.items()}))
@settings(max_examples=100)
def test_the_nearest_recipe_is_legal_and_has_the_sizes_of_a_legal_point(point):
    exact, nearest = POINTS.recipe(point), POINTS.nearest(point)
    if nearest is not None:
        assert not TASK.space.problems(nearest)
    if exact is not None and nearest is not None:
        sizes = ("tp", "pp", "ep", "mbs")
        assert [TASK.space.value(nearest, key) for key in sizes] == [TASK.space.value(exact, key) for key in sizes]


def test_a_size_that_does_not_divide_moves_to_the_next_that_does_and_levers_stay():
    point = POINTS.point(TASK.baseline) | {"tp": 8, "pp": 8, "manual_gc": True}
    assert POINTS.recipe(point) is None
    nearest = POINTS.nearest(point)
    assert TASK.space.value(nearest, "manual_gc") is True
    assert TASK.space.value(nearest, "tp") * TASK.space.value(nearest, "pp") <= CLUSTER.n_gpus
