"""The best recipes of a space are legal, fit, and no recipe drawn from the same space is better."""

from collections import Counter

import numpy as np
import pytest

from attune_lab.cost_model import SimulatedCostModel
from attune_lab.enumeration import LEVERS, BestRecipes, best_recipes, fastest_recipes
from attune_lab.parameters import LAYOUT
from attune_lab.recipe.recipe import Recipe
from attune_lab.space import SearchSpace
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe

SMALL = "16xH200-SXM5-141GB"


@pytest.fixture(scope="module", params=[dense, moe], ids=["dense", "moe"])
def case(request) -> tuple[Recipe, BestRecipes]:
    baseline = request.param(pp=1, vpp=None, gbs=32)
    return baseline, best_recipes(baseline, cluster(SMALL), 5)


def test_the_best_are_legal_fit_and_are_priced_as_written(case) -> None:
    baseline, found = case
    space = SearchSpace(baseline, cluster(SMALL))
    assert 0 < len(found.best) <= 5 <= found.fitting <= found.legal
    for one in (*found.best, *found.front):
        assert space.problems(one.recipe) == []
        assert one.estimate.fits
        assert {key: space.value(one.recipe, key) for key in one.values} == one.values
    seconds = [one.estimate.step_time_s for one in found.best]
    assert seconds == sorted(seconds)
    assert found.front[0].estimate.step_time_s == pytest.approx(seconds[0], rel=0.01)


@pytest.mark.parametrize("memory_limit", [1.0, 0.3])
def test_the_fastest_are_the_best_found_sooner(case, memory_limit) -> None:
    baseline, _ = case
    whole = best_recipes(baseline, cluster(SMALL), 30, memory_limit=memory_limit).best
    assert fastest_recipes(baseline, cluster(SMALL), 30, memory_limit=memory_limit) == whole


def test_no_drawn_recipe_is_better(case) -> None:
    baseline, found = case
    space, rng = SearchSpace(baseline, cluster(SMALL)), np.random.default_rng(0)
    governed = [key for key in (*LAYOUT, *LEVERS) if key in space.parameters]
    drawn = [space.values(space.sample(rng)) for _ in range(60)]
    recipes = [space.apply(baseline, {key: values[key] for key in governed}) for values in drawn]
    legal = [recipe for recipe in recipes if not space.problems(recipe)]
    assert len(legal) > 10
    fitting = [e.step_time_s for e in SimulatedCostModel(cluster(SMALL)).estimate(legal) if e.fits]
    assert min(fitting, default=np.inf) >= 0.99 * found.best[0].estimate.step_time_s


def test_of_one_layout_and_level_no_more_variants_than_asked_for() -> None:
    """The rest are those that come next: the same as without the layouts' other variants."""
    baseline = moe(pp=1, vpp=None, gbs=32)
    every, few = (fastest_recipes(baseline, cluster(SMALL), 400, variants=most) for most in (None, 2))

    def layout(one):
        return tuple(one.values.get(key) for key in (*LAYOUT, "recompute"))

    counts = Counter(map(layout, few))
    assert max(counts.values()) == 2
    seen: Counter = Counter()
    firsts = []
    for one in every:
        seen[layout(one)] += 1
        if seen[layout(one)] <= 2:
            firsts.append(one.recipe.digest)
    assert [one.recipe.digest for one in few[: len(firsts) // 2]] == firsts[: len(firsts) // 2]
