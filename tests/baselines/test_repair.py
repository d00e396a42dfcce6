"""Out of memory is answered with recomputation, around any tuner."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from attune_lab.contracts import Estimate, Proposal
from attune_lab.testing import ScriptedTuner, TunerContract, UniformDraws
from baselines.repair import Repair
from tests.attune_lab.agent.agent_world import make_task
from tests.baselines.small_task import campaign, ended, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Repair(UniformDraws)

    @pytest.fixture
    def task(self):
        return small_task(seed=3)


class TestContractAroundAnAgent(TunerContract):
    @pytest.fixture
    def factory(self):
        from attune_lab.agent import AttuneTuner

        return Repair(AttuneTuner)

    @pytest.fixture
    def task(self):
        return make_task()


class Listed(ScriptedTuner):
    """Proposes micro-batch sizes 8 and 2 and says why it stopped and what it used."""

    usage: ClassVar = {"usd": 1.5}
    stop_reason = "the script is over"

    def __init__(self, task):
        super().__init__(task.baseline, [{"mbs": 8}, {"mbs": 2}])


def levels(task, log):
    return [(p.recipe.get("mbs"), task.space.value(p.recipe, "recompute")) for p, _ in log]


def test_it_takes_the_weakest_level_that_fits_and_tells_the_inner_tuner_everything():
    task = small_task(recompute_granularity=None)
    tuner = Repair(Listed)(task)

    def answer(recipe):
        weak = task.space.value(recipe, "recompute") in ("none", "moe_act", "layernorm+moe_act")
        return ("oom" if weak and recipe.get("mbs") == 8 else "ok"), 1.0

    log = campaign(tuner, task, answer)
    choices = task.space.parameters["recompute"].choices
    estimates = {
        level: task.cost_model.estimate([task.space.apply(task.baseline, {"mbs": 8, "recompute": level})])[0]
        for level in choices
    }
    tried = [level for mbs, level in levels(task, log) if mbs == 8]
    assert tried[0] == "none"
    repaired = tried[1:]
    assert repaired == sorted(repaired, key=choices.index)
    assert all(estimates[level].fits for level in repaired)
    skipped = [level for level in choices[1 : choices.index(repaired[-1])] if level not in repaired]
    assert not any(estimates[level].fits for level in skipped)
    assert [r.status for p, r in log if p.recipe.get("mbs") == 8] == ["oom"] * (len(tried) - 1) + ["ok"]
    assert levels(task, log)[-1] == (2, "none")
    assert [p.recipe.digest for p, _ in tuner.inner.told[1:]] == [p.recipe.digest for p, _ in log]


def test_it_gives_up_where_no_level_is_expected_to_fit():
    class Full:
        def estimate(self, recipes):
            return [Estimate(1.0, 1.0, 90e9, 80e9, {}, {}) for _ in recipes]

    task = replace(small_task(), cost_model=Full())
    log = campaign(Repair(Listed)(task), task, lambda recipe: ("oom" if recipe.get("mbs") > 1 else "ok", 1.0))
    assert [p.recipe.get("mbs") for p, _ in log] == [8, 2]


def test_what_is_known_to_run_is_not_repaired():
    task = small_task()
    tuner = Repair(UniformDraws)(task)
    big = task.space.apply(task.baseline, {"mbs": 4})
    for level in task.space.parameters["recompute"].choices[1:]:
        tuner.tell(Proposal(task.space.apply(big, {"recompute": level})), ended(level, "ok"))
    tuner.tell(Proposal(big), ended("big", "oom"))
    assert "recompute" not in (tuner.ask().reason)


def test_a_repair_broken_by_the_infrastructure_is_asked_again():
    task = small_task()
    tuner = Repair(Listed)(task)
    proposal = tuner.ask()
    tuner.tell(proposal, ended("1", "oom"))
    repair = tuner.ask()
    tuner.tell(repair, ended("2", "node_failure"))
    assert tuner.ask() is repair
    assert repair.changed["recompute"][1] == task.space.value(repair.recipe, "recompute")


def test_reason_to_stop_and_usage_are_the_inner_tuners():
    task = small_task()
    tuner = Repair(Listed)(task)
    campaign(tuner, task, lambda recipe: ("ok", 1.0))
    assert (tuner.stop_reason, tuner.usage) == ("the script is over", {"usd": 1.5})
    plain = Repair(UniformDraws)(task)
    assert (plain.stop_reason, plain.usage) == ("", {})
