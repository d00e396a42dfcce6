"""The price list finds what is good without pricing everything, and prices nothing twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attune_lab.enumeration import best_recipes
from baselines.common.pricelist import PriceList, expected_s, explore, one_of_each_kind
from tests.baselines.small_task import small_task


class Counting:
    """The cost model, with a note of what it was asked."""

    def __init__(self, model):
        self.model, self.asked = model, []

    def estimate(self, recipes):
        self.asked += [recipe.digest for recipe in recipes]
        return self.model.estimate(recipes)


def test_nothing_is_priced_twice() -> None:
    task = small_task()
    counting = Counting(task.cost_model)
    prices = PriceList(task.space, counting)
    (base,) = prices.price([task.baseline])
    prices.neighbours(base)
    prices.neighbours(base)
    prices.price([task.baseline])
    assert len(counting.asked) == len(set(counting.asked))


def test_what_cannot_start_is_left_out() -> None:
    task = small_task()
    prices = PriceList(task.space, task.cost_model)
    assert not prices.edited(task.baseline, [{"pp": 3, "tp": 8}])


def test_exploring_finds_what_pricing_every_layout_finds() -> None:
    task = small_task()
    found = [one for one in explore(task) if one.fill <= 1.0]
    everything = best_recipes(task.baseline, task.cluster, 1).best[0]
    assert min(one.estimate.step_time_s for one in found) <= everything.estimate.step_time_s * 1.01


def test_a_second_campaign_shares_the_answer_and_changes_nothing_of_it() -> None:
    task = small_task()
    first, second = explore(task), explore(replace(task, seed=1))
    before = len(second)
    first.descend(expected_s, rounds=2)
    assert len(second) == before
    assert [one.recipe.digest for one in explore(task)] == [one.recipe.digest for one in second]


def test_every_kind_of_layout_is_represented() -> None:
    task = small_task()
    kinds = {(row["tp"], row["pp"], row["ep"]) for row in task.space.enumerate_layouts()}
    assert {(row["tp"], row["pp"], row["ep"]) for row in one_of_each_kind(task.baseline, task.space)} == kinds


def test_descending_improves_the_best_kinds() -> None:
    task = small_task()
    prices = PriceList(task.space, task.cost_model)
    prices.price([task.baseline])
    before = min(expected_s(list(prices)))
    prices.descend(expected_s, rounds=4)
    assert min(expected_s(list(prices))) < before
    assert np.isfinite(expected_s(prices.good)).all()
