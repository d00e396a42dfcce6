"""The MetaGPT pool: the procedure, dependencies, executable feedback."""

from __future__ import annotations

import pytest

from baselines.metagpt_pool import MAX_FIXES, MetaGptPool
from tests.baselines.agents.agents_on_trial import ArrangementContract
from tests.baselines.small_task import campaign, small_task


class TestMetaGptPool(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return MetaGptPool


def kinds(tuner):
    return [message.kind for message in tuner.pool._messages if message.kind not in ("incumbent", "objection")]


def finally_said(said):
    """Without proposals that were revised."""
    return [kind for place, kind in enumerate(said) if kind != "proposal" or said[place + 1] == "approval"]


def test_the_procedure():
    task = small_task()
    tuner = MetaGptPool(task)
    campaign(tuner, task, lambda _: ("ok", 1.0, 4e10), runs=2)
    turn = ["result", "requirement", "design", "proposal", "approval"]
    assert finally_said(kinds(tuner)) == [*turn, *turn, "result"]


def test_a_failed_run_goes_back_to_the_engineer_a_few_times():
    task = small_task()
    tuner = MetaGptPool(task)
    outcomes = iter(["ok", *["oom"] * (MAX_FIXES + 1), "ok"])
    campaign(tuner, task, lambda _: (next(outcomes), 1.0, 4e10), runs=MAX_FIXES + 2)
    said = [kind for kind in kinds(tuner) if kind in ("failure", "abandoned", "requirement", "result")]
    assert said == ["result", "requirement", *["failure"] * MAX_FIXES, "abandoned", "requirement", "result"]
    assert (
        tuner.trace[1].changes.items() >= {k: v for k, v in tuner.trace[0].changes.items() if k != "recompute"}.items()
    )


def test_the_engineer_waits_for_a_design():
    tuner = MetaGptPool(small_task())
    engineer = next(role for role in tuner.team if role.name == "engineer")
    tuner.pool.publish("executor", "incumbent", 0, {})
    tuner.pool.publish("executor", "failure", 0, {})
    assert not tuner.pool.fires(engineer)
    tuner.pool.publish("architect", "design", 0, {})
    assert tuner.pool.fires(engineer)


def test_it_ends_when_the_design_holds_nothing_new(monkeypatch):
    played = MetaGptPool.scripts
    nothing = {"reasoning": "", "lever": "", "changes": {}, "done": True}
    monkeypatch.setattr(MetaGptPool, "scripts", lambda self: {**played(self), "engineer": lambda facts: nothing})
    task = small_task()
    tuner = MetaGptPool(task)
    assert campaign(tuner, task) == []
    assert tuner.stop_reason == "the engineer finds nothing new in the design"
