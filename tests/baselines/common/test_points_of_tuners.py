"""Recipes as points, and the nearest legal recipe."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.parameters import LAYOUT
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
def test_the_nearest_recipe_is_legal(point):
    nearest = POINTS.nearest(point)
    if nearest is not None:
        assert not TASK.space.problems(nearest)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_legal_sizes_are_the_nearest_to_themselves(seed):
    point = POINTS.point(TASK.space.sample(np.random.default_rng(seed)))
    nearest = POINTS.nearest(point)
    if nearest is not None:
        assert [TASK.space.value(nearest, key) for key in LAYOUT] == [point[key] for key in LAYOUT]


def test_a_size_that_does_not_divide_moves_to_the_next_that_does_and_levers_stay():
    point = POINTS.point(TASK.baseline) | {"tp": 8, "pp": 8, "cp": 8, "manual_gc": True}
    assert POINTS.recipe(point) is None
    nearest = POINTS.nearest(point)
    assert TASK.space.value(nearest, "manual_gc") is True
    assert math.prod(TASK.space.value(nearest, key) for key in ("tp", "pp", "cp")) <= CLUSTER.n_gpus
