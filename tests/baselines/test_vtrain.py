"""The cost model's ranking, run from the top."""

from __future__ import annotations

import pytest

from attune_lab.contracts import TuningTask
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.enumeration import best_recipes
from attune_lab.space import SearchSpace
from attune_lab.testing import TunerContract
from baselines.vtrain import VTrain
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense
from tests.baselines.small_task import SmallBudget, campaign

NODE = cluster("8xH100-SXM5-80GB")


def node_task(options=None):
    baseline = dense(tp=2, pp=2, vpp=None, gbs=32, num_layers=8)
    return TuningTask(
        baseline, NODE, SearchSpace(baseline, NODE), SimulatedCostModel(NODE), SmallBudget(), 0, options or {}
    )


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return VTrain

    @pytest.fixture
    def task(self):
        return node_task()


def test_the_k_best_are_run_in_order_whatever_they_turn_out_to_be():
    task = node_task({"k": 6, "margin": 0.1})
    expected = [f.recipe.digest for f in best_recipes(task.baseline, NODE, 6, memory_limit=0.9).best]
    for status in ("ok", "oom"):
        tuner = VTrain(task)
        log = campaign(tuner, task, lambda recipe, status=status: (status, 1.0), runs=50)
        assert [p.recipe.digest for p, _ in log] == [d for d in expected if d != task.baseline.digest]
        assert tuner.stop_reason == "the 6 recipes ranked highest have been run"


def test_predictions_go_with_the_proposals():
    task = node_task({"k": 3})
    log = campaign(VTrain(task), task)
    predicted = [proposal.predicted["step_time_s"] for proposal, _ in log]
    assert predicted == sorted(predicted)
    for proposal, _ in log:
        assert proposal.predicted["step_time_s"] == pytest.approx(
            task.cost_model.estimate([proposal.recipe])[0].step_time_s
        )


def test_more_memory_left_free_leaves_out_what_is_full():
    free = node_task({"k": 20, "margin": 0.85})
    for proposal, _ in campaign(VTrain(free), free):
        assert proposal.predicted["peak_memory_bytes"] <= 0.15 * 80 * 2**30 * 1.001


def test_what_looks_refused_is_run_at_the_end():
    task = node_task({"k": 12, "margin": 0.1})
    ranked = [f.recipe for f in best_recipes(task.baseline, NODE, 12, memory_limit=0.9).best]
    refused = ranked[0].settings["mbs"]

    def outcome(recipe):
        return ("invalid" if recipe.settings["mbs"] == refused else "ok"), 1.0

    tuner = VTrain(task)
    run = [p.recipe.digest for p, _ in campaign(tuner, task, outcome, runs=50)]
    expected = [recipe.digest for recipe in ranked if recipe.digest != task.baseline.digest]
    assert sorted(run) == sorted(expected)
    assert run != expected
    assert tuner.stop_reason == "the 12 recipes ranked highest have been run"
