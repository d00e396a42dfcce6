"""Carrying a recipe over changes as little as it can, and never the training."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.recipe.carry import MEMORY_LIMIT, carry_over
from attune_lab.recipe.files import load
from attune_lab.recipe.shape import shape_of
from attune_lab.space import SearchSpace
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe


def test_what_starts_and_fits_is_left_alone() -> None:
    result = carry_over(moe(), cluster(), SimulatedCostModel(cluster()))
    assert (result.recipe, result.changes) == (moe(), ())


@pytest.mark.parametrize("name", ["16xH100-SXM5-80GB", "16xH200-SXM5-141GB", "32xH100-SXM5-80GB", "128xA100-SXM4-80GB"])
def test_result_starts_fits_and_trains_the_same(name) -> None:
    here = cluster(name)
    model = SimulatedCostModel(here)
    result = carry_over(moe(), here, model)
    (estimate,) = model.estimate([result.recipe])
    assert estimate.peak_memory_bytes <= MEMORY_LIMIT * estimate.memory_capacity_bytes
    assert SearchSpace(moe(), here).problems(result.recipe) == []
    for key in ("gbs", "seq_len", "num_layers", "bf16"):
        assert result.recipe.get(key) == moe().get(key)
    assert {change.key for change in result.changes} == set(SearchSpace(moe(), here).changed(moe(), result.recipe))


@pytest.mark.parametrize("name", ["llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2"])
@pytest.mark.parametrize("where", ["64xH200-SXM5-141GB", "64xB200-SXM-180GB"])
def test_public_recipes_get_a_working_baseline(name, where) -> None:
    here, recipe = cluster(where), load(name).recipe
    result = carry_over(recipe, here, SimulatedCostModel(here))
    (estimate,) = SimulatedCostModel(here).estimate([result.recipe])
    assert estimate.fits
    assert SearchSpace(recipe, here).problems(result.recipe) == []
    assert shape_of(result.recipe).name == name


def test_one_halving_before_two() -> None:
    here = cluster("16xH200-SXM5-141GB")
    result = carry_over(moe(), here, SimulatedCostModel(here))
    (size, *rest) = result.changes
    assert (size.key, rest) == ("pp", [])
    assert size.why.startswith("pipeline parallelism from 4 to 2: as published it cannot start on 16xH200")


def test_nothing_fits() -> None:
    here = cluster("8xA100-SXM4-40GB")
    with pytest.raises(UserError, match=r"smallest predicted peak is [\d.]+ GiB"):
        carry_over(dense(hidden=16384, heads=128, ffn=53248), here, SimulatedCostModel(here))
