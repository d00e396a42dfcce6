"""The cost model in batches, corrected for memory; legal moves; the ranking of all layouts."""

from __future__ import annotations

import pytest

from attune_lab.contracts import Estimate
from attune_lab.enumeration import best_recipes
from baselines.common.history import History
from baselines.common.moves import applicable, moves
from baselines.common.pricing import Pricing
from baselines.common.ranking import ranked_recipes
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense
from tests.baselines.small_task import ended, small_task


class CountingModel:
    """Every recipe takes 1 s and 40 of 80 GB; counts the recipes it is asked for."""

    asked = 0

    def estimate(self, recipes):
        self.asked += len(recipes)
        return [Estimate(1.0, 1.0, 40e9, 80e9, {}, {}) for _ in recipes]


class Task:
    def __init__(self):
        self.cost_model = CountingModel()


def test_each_recipe_is_estimated_once():
    space, task = small_task().space, Task()
    recipes = [space.apply(space.baseline, {"mbs": size}) for size in (1, 2, 1, 4)]
    pricing = Pricing(task, History())
    assert len(pricing.of(recipes)) == 4
    pricing.of(recipes[:2])
    assert task.cost_model.asked == 3


def test_measured_peaks_correct_predicted_ones():
    space, history = small_task().space, History()
    pricing = Pricing(Task(), history)
    estimates = pricing.of([space.baseline])
    assert pricing.memory_factor() == 1.0
    for label, size, peak in (("1", 1, 40e9), ("2", 2, 90e9)):
        history.record(space.apply(space.baseline, {"mbs": size}), ended(label, "ok", peak=peak))
    assert pricing.memory_factor() == pytest.approx((40 * 90) ** 0.5 / 40)
    assert pricing.fits(estimates, margin=0.1) == [True]  # 60 of 72 GB
    assert pricing.fits(estimates, margin=0.3) == [False]  # 60 of 56 GB


def test_a_recipe_that_cannot_start_does_not_fit():
    broken = Estimate(float("nan"), float("nan"), float("nan"), 80e9, {}, {}, ("no",))
    assert Pricing(Task(), History()).fits([broken]) == [False]


def test_moves_are_all_legal_neighbours_that_have_an_effect():
    task = small_task()
    space, baseline = task.space, task.baseline
    assert "delay_wgrad" not in applicable(task, baseline)  # does nothing without expert-parallel overlap
    found = moves(task, baseline)
    assert len({move.recipe.digest for move in found}) == len(found) > 20
    for move in found:
        assert space.value(move.recipe, move.key) == move.value
        assert not space.problems(move.recipe)
    expected = {
        (key, value)
        for key in applicable(task, baseline)
        for value in space.neighbours(baseline, key)
        if not space.problems(space.apply(baseline, {key: value}))
    }
    assert {(move.key, move.value) for move in found} == expected
    assert {move.key for move in moves(task, baseline, ["mbs"])} == {"mbs"}


def test_the_ranking_is_the_cost_models_own():
    baseline, node = dense(tp=2, pp=2, vpp=None, gbs=32, num_layers=8), cluster("8xH100-SXM5-80GB")
    ranking = ranked_recipes(baseline, node, 5, memory_limit=0.9)
    direct = best_recipes(baseline, node, 5, memory_limit=0.9).best
    assert [found.recipe.digest for found in ranking] == [found.recipe.digest for found in direct]
    assert ranked_recipes(baseline, node, 5, memory_limit=0.9) is ranking
