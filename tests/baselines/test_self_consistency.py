"""Self-consistency: the same question k times, the majority runs."""

from __future__ import annotations

import itertools

import pytest

from baselines.self_consistency import SelfConsistency
from tests.baselines.agents.agents_on_trial import ArrangementContract
from tests.baselines.small_task import campaign, small_task


class TestSelfConsistency(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return SelfConsistency


def says(**changes):
    return {"reasoning": "", "lever": next(iter(changes), ""), "changes": changes}


def voted(monkeypatch, *replies):
    """What runs first when the samples give ``replies``."""
    order = itertools.cycle(replies)
    monkeypatch.setattr(SelfConsistency, "scripts", lambda self: {"engineer": lambda facts: next(order)})
    task = small_task({"k": str(len(replies))})
    tuner = SelfConsistency(task)
    log = campaign(tuner, task, runs=1)
    return tuner, tuner.trace[0].changes if log else None


def test_the_majority_runs(monkeypatch):
    assert voted(monkeypatch, says(tp=4), says(tp=1), says(mbs=2), says(tp=1), says(tp=8))[1] == {"tp": 1}


def test_ties_go_to_the_answer_given_first(monkeypatch):
    assert voted(monkeypatch, says(tp=4), says(tp=1), says(tp=1), says(tp=4))[1] == {"tp": 4}


def test_it_ends_when_most_have_nothing(monkeypatch):
    nothing = {**says(), "done": True}
    tuner, ran = voted(monkeypatch, nothing, nothing, says(tp=1))
    assert (tuner.stop_reason, ran) == ("most samples say that nothing is worth a run any more", None)


def test_samples_are_asked_apart(monkeypatch):
    seen = []
    monkeypatch.setattr(
        SelfConsistency, "scripts", lambda self: {"engineer": lambda facts: (seen.append(facts), says(tp=1))[1]}
    )
    task = small_task({"k": "4"})
    campaign(SelfConsistency(task), task, runs=1)
    assert [facts["sample"] for facts in seen] == [0, 1, 2, 3]
    assert all({**facts, "sample": 0} == seen[0] for facts in seen)
