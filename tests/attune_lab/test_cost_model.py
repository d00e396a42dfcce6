"""The cost model is the simulator, asked in recipes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attune_lab.contracts import CostModel
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.recipe.jobs import jobs_for
from attune_lab.space import SearchSpace
from simulator.step import simulate_step
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe


def test_figures_are_the_simulators() -> None:
    model: CostModel = SimulatedCostModel(cluster())
    recipes = [
        moe(),
        moe(vpp=None),
        moe(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
    ]
    step = simulate_step(jobs_for(recipes, cluster()))
    for index, estimate in enumerate(model.estimate(recipes)):
        assert estimate.problems == ()
        assert estimate.step_time_s == pytest.approx(step.step_time_s[index])
        assert estimate.peak_memory_bytes == pytest.approx(step.peak_reserved_bytes[index].max())
        assert sum(estimate.breakdown_s.values()) == pytest.approx(estimate.step_time_s)
        assert len(estimate.stage_memory_bytes) == 4


def test_order_survives_illegal_recipes_and_other_models() -> None:
    model = SimulatedCostModel(cluster())
    recipes = [moe(tp=3), dense(), moe(), moe(num_layers=None), moe(fp8="hybrid", fp8_recipe="custom")]
    bad, small, good, missing, custom = model.estimate(recipes)
    assert bad.problems
    assert math.isnan(bad.step_time_s)
    assert not bad.fits
    assert "--num-layers" in missing.problems[0]
    assert "custom" in custom.problems[0]
    assert (small, good) == (*model.estimate([dense()]), *model.estimate([moe()]))


def test_formats_the_accelerator_lacks_are_refused() -> None:
    model = SimulatedCostModel(cluster("64xA100-SXM4-80GB"))
    (estimate,) = model.estimate([moe(fp8="hybrid", fp8_recipe="tensorwise")])
    assert estimate.problems == ("A100-SXM4-80GB has no FP8 units; train in BF16 there",)


def test_every_sampled_recipe_can_be_priced() -> None:
    space, rng = SearchSpace(moe(), cluster(), approvals=("fp8",)), np.random.default_rng(2)
    estimates = SimulatedCostModel(cluster()).estimate([space.sample(rng) for _ in range(20)])
    assert all(estimate.step_time_s > 0 and estimate.peak_memory_bytes > 0 for estimate in estimates)
