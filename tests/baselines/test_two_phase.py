"""First seeds that run, then speed."""

from __future__ import annotations

import pytest

from attune_lab.testing import TunerContract
from baselines.agents.cards import card_of
from baselines.two_phase import KIND, MOST_DRAFTS, TwoPhase, build, judge
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return TwoPhase

    @pytest.fixture
    def task(self):
        return small_task(seed=2)


def kinds(task, log):
    return [tuple(task.space.value(proposal.recipe, key) for key in KIND) for proposal, _ in log]


def test_a_seed_of_another_layout_for_each_island_then_evolution():
    task = small_task()
    tuner = TwoPhase(task)
    log = campaign(tuner, task, lambda recipe: ("ok", 1.0), runs=2)
    own = tuple(task.space.value(task.baseline, key) for key in KIND)
    assert len({own, *kinds(task, log)}) == 3
    assert not tuner.seeding
    for (proposal, _), island in zip(log, tuner.islands.populations, strict=True):
        assert proposal.recipe.digest in {trial.recipe.digest for trial in island}


def test_the_first_phase_is_given_up_where_nothing_runs():
    task = small_task()
    tuner = TwoPhase(task)
    log = campaign(tuner, task, lambda recipe: ("ok" if recipe.digest == task.baseline.digest else "oom", 1.0), runs=8)
    assert len(set(kinds(task, log[:MOST_DRAFTS]))) == MOST_DRAFTS
    assert not tuner.seeding


def recipe_facts(task, memory_share=0.5):
    recipe = {"values": dict(task.space.values(task.baseline)), "memory_share": memory_share}
    return {"incumbent": recipe, "history": [], "refused": []}


def test_the_builder_takes_the_nearest_layout_with_memory_to_spare():
    task = small_task()
    reply = build({"card": card_of(task), **recipe_facts(task)})
    child = task.space.apply(task.baseline, reply["changes"])
    assert not task.space.problems(child)
    assert set(KIND) & set(reply["changes"])
    full = build({"card": card_of(task), **recipe_facts(task, 50.0)})
    assert full["changes"] == {}


def test_the_judge_goes_by_checks_and_memory():
    task = small_task()
    shown = {"card": card_of(task), **recipe_facts(task), "draft": {"tp": 4}, "checks": []}
    assert judge(shown)["verdict"] == "accept"
    assert judge({**shown, "checks": ["it cannot start"]}) == {"reasoning": "it cannot start", "verdict": "reject"}
    assert judge({**shown, "draft": {"mbs": 16}})["verdict"] == "reject"
