"""Stages, the largest micro-batch by bisection, and flags with an early stop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import TuningTask, UserError
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.space import SearchSpace
from attune_lab.testing import TunerContract
from baselines.common.history import Trial
from baselines.deepspeed_stages import DeepSpeedStages, evenly
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense
from tests.baselines.small_task import SmallBudget, campaign, ended, small_task

NODE = cluster("8xH100-SXM5-80GB")


def node_task(options=None):
    """A task small enough to rank in no time."""
    baseline = dense(tp=2, pp=2, vpp=None, gbs=64, num_layers=8)
    return TuningTask(
        baseline, NODE, SearchSpace(baseline, NODE), SimulatedCostModel(NODE), SmallBudget(), 0, options or {}
    )


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return DeepSpeedStages

    @pytest.fixture
    def task(self):
        return node_task()


@settings(max_examples=40)
@given(count=st.integers(0, 16), runs=st.integers(0, 16))
def test_bisection_finds_the_largest_that_runs(count, runs):
    runs = min(runs, count)
    task = small_task()
    recipes = [task.baseline.with_settings({"mbs": size}) for size in range(1, count + 1)]
    asked = []

    def searched():
        asked.append((yield from DeepSpeedStages(task).largest(recipes)))

    search = searched()
    proposal = next(search, None)
    while proposal is not None:
        size = proposal.recipe.get("mbs")
        asked.append(size)
        trial = Trial(proposal.recipe, [ended(str(size), "ok" if size <= runs else "oom")])
        proposal = _sent(search, trial)
    *sizes, found = asked
    assert found == runs
    assert len(set(sizes)) == len(sizes) <= 2 * math.log2(count + 1) + 1


def _sent(search, trial):
    try:
        return search.send(trial)
    except StopIteration:
        return None


@given(count=st.integers(1, 20), wanted=st.integers(1, 20))
def test_sizes_are_spread_evenly_and_end_with_the_largest(count, wanted):
    chosen = evenly(range(count), wanted)
    assert len(chosen) == len(set(chosen)) == min(count, wanted)
    assert chosen[-1] == count - 1
    assert wanted == 1 or chosen[0] == 0


def test_stages_come_from_the_hungriest_to_the_leanest():
    task = node_task()
    log = campaign(DeepSpeedStages(task), task, lambda recipe: ("ok", 1.0 / len(task.space.parameters)), runs=3)
    assert task.space.value(log[0][0].recipe, "recompute") == "none"


def test_a_stage_that_does_not_pay_ends_the_layout():
    task = node_task({"num_mbs": 1, "num_trials": 1})

    def answer(recipe):
        return "ok", 1.0 + task.space.parameters["recompute"].choices.index(task.space.value(recipe, "recompute"))

    log = campaign(DeepSpeedStages(task), task, answer, runs=12)
    layouts = [task.space.values(p.recipe) for p, _ in log]
    own = {key: task.space.value(task.baseline, key) for key in ("tp", "pp", "cp", "vpp")}
    here = [values["recompute"] for values in layouts if all(values[key] == size for key, size in own.items())]
    assert set(here) == {"none", "layernorm"}


def test_flags_end_after_so_many_runs_without_improvement():
    task = node_task({"early_stop": 3})
    flags = ("bucket_size", "overlap_grad_reduce", "cross_entropy_fusion", "tp_comm_overlap")

    def answer(recipe):
        touched = set(task.space.changed(task.baseline, recipe)) & set(flags)
        return "ok", (2.0 if touched else 1.0 / recipe.get("mbs"))

    log = campaign(DeepSpeedStages(task), task, answer, runs=25)
    tuned = [bool(set(task.space.changed(task.baseline, p.recipe)) & set(flags)) for p, _ in log]
    streaks = "".join("x" if one else "." for one in tuned).split(".")
    assert max(len(streak) for streak in streaks) == 3


def test_options_are_checked():
    with pytest.raises(UserError, match="option tuner_type of the deepspeed-stages tuner is 'xgboost'"):
        DeepSpeedStages(small_task({"tuner_type": "xgboost"}))
