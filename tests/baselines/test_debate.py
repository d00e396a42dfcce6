"""Debate: independent proposals, rounds in which each hears the others, a vote."""

from __future__ import annotations

import pytest

from baselines.agents.cards import card_of
from baselines.debate import STANDS, Debate, debater
from tests.baselines.agents.agents_on_trial import ArrangementContract
from tests.baselines.small_task import campaign, small_task

CARD = card_of(small_task())


class TestDebate(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return Debate


def says(**changes):
    return {"reasoning": "", "lever": next(iter(changes), ""), "changes": changes}


def debated(monkeypatch, answer, **options):
    """The first run's changes, and what every debater was told, in order."""
    heard = []
    monkeypatch.setattr(
        Debate, "scripts", lambda self: {"debater": lambda facts: (heard.append(facts), answer(facts))[1]}
    )
    task = small_task(options)
    tuner = Debate(task)
    campaign(tuner, task, runs=1)
    return tuner.trace[0].changes, heard


FIRST = [says(tp=4), says(tp=1), says(mbs=2)]


def test_each_hears_the_others_from_the_second_round_on(monkeypatch):
    ran, heard = debated(monkeypatch, lambda facts: facts["yours"] or FIRST[facts["seat"]], rounds="2")
    assert [facts["others"] for facts in heard[:3]] == [[]] * 3
    assert [facts["yours"] for facts in heard[3:]] == FIRST
    assert heard[3]["others"] == FIRST[1:]
    assert [facts["stand"] for facts in heard[:3]] == list(STANDS)
    assert ran == {"tp": 4}


def test_minds_change_and_the_majority_of_the_last_round_runs(monkeypatch):
    ran, heard = debated(monkeypatch, lambda facts: says(tp=1) if facts["others"] else FIRST[facts["seat"]], rounds="5")
    assert ran == {"tp": 1}
    assert len(heard) == 6, "consensus ends the debate"


def test_the_majority_of_three(monkeypatch):
    answers = [says(mbs=2), says(tp=1), says(tp=1)]
    assert debated(monkeypatch, lambda facts: answers[facts["seat"]], rounds="1")[0] == {"tp": 1}


def test_scripted_debaters_agree_on_one_proposal_of_the_table():
    values = CARD["recipe"]
    shares = {"compute": 0.5, "exposed_ep": 0.2, "bubble": 0.16, "host": 0.14}
    facts = {
        "card": CARD, "incumbent": {"values": values, "shares": shares, "memory_share": 0.5}, "last_run": {},
        "history": [], "refused": [], "yours": {}, "others": [],
    }  # fmt: skip
    first = [debater({**facts, "stand": stand}) for stand in STANDS]
    assert len({str(reply["changes"]) for reply in first}) > 1
    second = [debater({**facts, "stand": stand, "yours": first[0], "others": first[1:]}) for stand in STANDS]
    assert second[0] == second[1] == second[2]
    assert second[0] in first
