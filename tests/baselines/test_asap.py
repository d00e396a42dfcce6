"""ASAP: three roles, three candidates, a memory of shardings."""

from __future__ import annotations

import pytest

from baselines.asap import CANDIDATES, RECALLED, Asap
from tests.baselines.agents.agents_on_trial import ArrangementContract
from tests.baselines.small_task import as_predicted, campaign, small_task


class TestAsap(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return Asap


def asked(tuner, role):
    return [exchange for exchange in tuner._llm._transcript if exchange.request["role"] == role]


def test_the_order_of_roles_and_three_candidates_a_turn():
    task = small_task()
    tuner = Asap(task)
    log = campaign(tuner, task, runs=6)
    roles = [exchange.request["role"] for exchange in tuner._llm._transcript]
    assert roles[:3] == ["analyzer", "proposer", "coordinator"]
    offered = asked(tuner, "proposer")[0].body["candidates"]
    assert len(offered) == CANDIDATES
    assert len({one["lever"] for one in offered}) == CANDIDATES
    assert [step.changes for step in tuner.trace[:3]] == [one["changes"] for one in offered]
    assert len(log) == 6


def test_the_coordinator_decides_what_runs_and_when(monkeypatch):
    played = Asap.scripts
    monkeypatch.setattr(
        Asap,
        "scripts",
        lambda self: {**played(self), "coordinator": lambda facts: {"reasoning": "", "order": [2, 9, 0]}},
    )
    task = small_task()
    tuner = Asap(task)
    campaign(tuner, task, runs=1)
    offered = asked(tuner, "proposer")[0].body["candidates"]
    assert [step.changes for step in tuner.trace] == [offered[2]["changes"], offered[0]["changes"]]


def test_the_memory_recalls_the_nearest_runs():
    task = small_task()
    tuner = Asap(task)
    campaign(tuner, task, lambda recipe: ("ok", 1.0, 4e10), runs=15)
    recalled = tuner._recalled()
    assert len(recalled) == RECALLED
    assert recalled[0]["changed_from_recipe"] == {}, "the incumbent itself is nearest"


def test_with_the_cost_model_only_the_fastest_candidate_runs():
    task = small_task({"use_analytic_estimate": "true"})
    tuner = Asap(task)
    campaign(tuner, task, as_predicted(task), runs=1)
    offered = [one["changes"] for one in asked(tuner, "proposer")[0].body["candidates"]]
    recipes = [task.space.apply(task.baseline, changes) for changes in offered]
    estimates = [estimate for estimate in task.cost_model.estimate(recipes) if estimate.fits]
    [step] = tuner.trace
    chosen = task.space.apply(task.baseline, step.changes)
    assert task.cost_model.estimate([chosen])[0].step_time_s == min(one.step_time_s for one in estimates)
