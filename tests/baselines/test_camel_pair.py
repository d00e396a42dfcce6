"""The CAMEL pair: strict turns, one instruction at a time, termination, a limit of turns."""

from __future__ import annotations

import itertools

import pytest

from baselines.camel_pair import CamelPair
from tests.baselines.agents.agents_on_trial import ArrangementContract
from tests.baselines.small_task import campaign, small_task


class TestCamelPair(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return CamelPair


def spoken(tuner):
    return [exchange.request["role"] for exchange in tuner._llm._transcript]


def order(done=False, **changes):
    return {"reasoning": "", "instruction": "do", "lever": next(iter(changes), ""), "changes": changes, "done": done}


def with_instructor(monkeypatch, script, **options):
    played = CamelPair.scripts
    monkeypatch.setattr(CamelPair, "scripts", lambda self: {**played(self), "instructor": script})
    task = small_task(options)
    tuner = CamelPair(task)
    return tuner, campaign(tuner, task, runs=1)


def test_turns_alternate_and_the_task_is_specified_once():
    task = small_task()
    tuner = CamelPair(task)
    campaign(tuner, task, runs=3)
    said = spoken(tuner)
    assert said[0] == "task_specifier"
    assert said.count("task_specifier") == 1
    dialogue = said[1:]
    assert dialogue[0] == "instructor"
    assert ("assistant", "assistant") not in itertools.pairwise(dialogue)
    assert dialogue.count("instructor") == dialogue.count("assistant") + 3, "each dialogue ends by the instructor"


def test_instructions_add_up(monkeypatch):
    steps = [order(tp=4), order(mbs=2), order(done=True)]
    tuner, _ = with_instructor(monkeypatch, lambda facts: steps[len(facts["dialogue"])])
    assert tuner.trace[0].changes["tp"] == 4
    assert tuner.trace[0].changes["mbs"] == 2


def test_the_limit_of_turns_bounds_the_dialogue(monkeypatch):
    steps = [order(tp=4), order(mbs=2), order(manual_gc=True)]
    tuner, _ = with_instructor(monkeypatch, lambda facts: steps[len(facts["dialogue"]) % 3], turns="2")
    assert spoken(tuner) == ["task_specifier", *["instructor", "assistant"] * 2]
    assert "manual_gc" not in tuner.trace[0].changes


def test_done_from_the_start_ends_the_search(monkeypatch):
    tuner, log = with_instructor(monkeypatch, lambda facts: order(done=True))
    assert log == []
    assert tuner.stop_reason == "the instructor says that the task is done"
