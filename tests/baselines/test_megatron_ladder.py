"""Rung by rung up the ladder."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.megatron_ladder import MegatronLadder
from tests.baselines.small_task import CLUSTER, campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return MegatronLadder

    @pytest.fixture
    def task(self):
        return small_task()


def reasons(log):
    return [proposal.reason.split(":")[0] for proposal, _ in log]


def test_rungs_come_in_the_order_of_the_rules():
    task = small_task(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    log = campaign(MegatronLadder(task), task, lambda recipe: ("ok", 1.0), runs=60)
    order = [
        "a larger micro-batch", "more virtual stages shrink the bubble", "less recomputation",
        "one more overlap or fusion", "the next larger model-parallel size that fits",
    ]  # fmt: skip
    first = [reasons(log).index(reason) for reason in order]
    assert first == sorted(first)


def test_a_rung_that_pays_is_climbed_on_and_one_that_does_not_is_left():
    task = small_task()
    seconds = {1: 10.0, 2: 9.0, 4: 8.0, 8: 8.5, 16: 7.0}
    log = campaign(MegatronLadder(task), task, lambda recipe: ("ok", seconds[recipe.get("mbs")]), runs=5)
    assert [proposal.recipe.get("mbs") for proposal, _ in log][:4] == [2, 4, 8, 4]


def test_out_of_memory_is_answered_with_recomputation():
    task = small_task()

    def answer(recipe):
        small = recipe.get("mbs") == 1 or task.space.value(recipe, "recompute") in ("moe", "layernorm+moe", "full")
        return ("ok" if small else "oom"), 10.0 - recipe.get("mbs")

    log = campaign(MegatronLadder(task), task, answer, runs=4)
    levels = task.space.parameters["recompute"].choices
    tried = [levels.index(task.space.value(proposal.recipe, "recompute")) for proposal, _ in log]
    assert tried == sorted(tried)
    assert [report.status for _, report in log][-1] == "ok"
    assert log[0][0].recipe.get("mbs") == log[-1][0].recipe.get("mbs") == 2
    assert log[-1][0].reason == "out of memory: the same with recompute moe"


def test_layouts_follow_in_the_order_of_model_parallel_size():
    task = small_task()
    log = campaign(MegatronLadder(task), task, lambda recipe: ("ok", 1.0), runs=80)
    starts = [p.recipe for p, _ in log if p.reason.startswith("the next larger")]
    sizes = [recipe.get("tp") * recipe.get("pp") for recipe in starts]
    first_round = sizes[: next((n for n in range(1, len(sizes)) if sizes[n] <= sizes[n - 1]), None)]
    assert first_round[0] == min(sizes)
    assert len(first_round) >= 4
    for recipe in starts:
        assert recipe.get("tp") <= CLUSTER.gpus_per_node
        assert recipe.get("mbs") == 1


def test_it_takes_no_options():
    with pytest.raises(UserError, match="the megatron-ladder tuner has no option k"):
        MegatronLadder(small_task({"k": 1}))
