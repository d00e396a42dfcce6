"""A grid in its order, without learning."""

from __future__ import annotations

import itertools

import pytest

from attune_lab.contracts import UserError
from attune_lab.recipe.shape import shape_of
from attune_lab.testing import TunerContract
from baselines.grid import AXES, STATE_BYTES, WIDTH, Grid
from simulator.models.parameters import parameters
from tests.baselines.small_task import CLUSTER, campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Grid

    @pytest.fixture
    def task(self):
        return small_task()


def place(task, values):
    return tuple(task.space.parameters[key].choices.index(values[key]) for key in AXES)


def test_nested_order_is_the_order_of_the_loops():
    task = small_task({"order": "nested", "memory": False})
    places = [place(task, point) for point in Grid(task).points()]
    assert places == sorted(places)
    ran = [place(task, task.space.values(p.recipe)) for p, _ in campaign(Grid(task), task, runs=25)]
    assert ran == sorted(ran)
    assert set(ran) <= set(places)


def test_the_window_begins_where_the_training_state_fits():
    task = small_task()
    state = STATE_BYTES * parameters(shape_of(task.baseline)).total / CLUSTER.accelerator.memory_bytes
    sizes = [point["tp"] * point["pp"] * point["cp"] * point["ep"] for point in Grid(task).points()]
    assert state / 2 < min(sizes)
    assert max(sizes) <= WIDTH * max(state, 1)


def test_every_legal_combination_of_the_ranges_is_a_point():
    task = small_task()
    points = Grid(task).points()
    ranges = {key: sorted({point[key] for point in points}, key=str) for key in AXES}
    inside = {tuple(point[key] for key in AXES) for point in points}
    products = {tp * pp * cp * ep for tp, pp, cp, ep, *_ in inside}
    rows = {tuple(row[key] for key in AXES[:-1]) for row in task.space.enumerate_layouts() if row["etp"] == 1}
    for values in itertools.product(*(ranges[key] for key in AXES)):
        product = values[0] * values[1] * values[2] * values[3]
        legal = values[:-1] in rows and min(products) <= product <= max(products)
        assert (values in inside) == legal


def test_points_near_the_recipe_come_first():
    task = small_task()
    own = place(task, task.space.values(task.baseline))
    steps = [
        sum(abs(a - b) for a, b in zip(place(task, task.space.values(p.recipe)), own, strict=True))
        for p, _ in campaign(Grid(task), task, runs=25)
    ]
    assert steps == sorted(steps)


def test_it_learns_nothing():
    task = small_task({"memory": False})
    ran = [
        [p.recipe.digest for p, _ in campaign(Grid(task), task, lambda recipe, s=status: (s, 1.0), runs=10)]
        for status in ("ok", "oom")
    ]
    assert ran[0] == ran[1]


def test_the_order_is_checked():
    with pytest.raises(UserError, match="option order of the grid tuner is 'best'; give one of near, nested"):
        Grid(small_task({"order": "best"}))
