"""OptiCo: the order of turns, revisions, termination, its own protocol and its ablations."""

from __future__ import annotations

import itertools

import pytest

from baselines.agents.traces import labels
from baselines.optico.roles import ABLATIONS
from baselines.optico.tuner import ITERATIONS, SCRIPTS, Optico
from tests.baselines.agents.agents_on_trial import ArrangementContract, digests
from tests.baselines.small_task import as_predicted, campaign, small_task


class TestOptico(ArrangementContract):
    @pytest.fixture
    def factory(self):
        return Optico


def messages(tuner):
    return [(message.sender, message.kind) for message in tuner.pool._messages]


def with_scripts(monkeypatch, **replies):
    """Some players give fixed replies, one after the other, the last one again."""

    def script(said):
        left, last = list(said), said[-1]
        return lambda facts: left.pop(0) if left else last

    monkeypatch.setattr(
        Optico, "scripts", lambda self: {**SCRIPTS, **{role: script(replies[role]) for role in replies}}
    )


def now_and_then_out_of_memory():
    """Every third run is out of memory, the others take a second."""
    numbers = itertools.count()
    return lambda _: ("oom" if next(numbers) % 3 == 1 else "ok", 1.0, 40e9)


REVISE = {"reasoning": "", "verdict": "revise", "violations": ["no"], "suggested_edit": {}}
DONE = {"reasoning": "", "lever": "", "changes": {}, "done": True}


def test_the_order_of_turns():
    task = small_task()
    outcomes = iter(["ok", "ok", "oom", "ok"])
    tuner = Optico(task)
    campaign(tuner, task, lambda _: (next(outcomes), 1.0, 40e9), runs=3)
    turn = [("strategist", "proposal"), ("checker", "approval")]
    success, failure = [("executor", "result")], [("executor", "failure")]
    analysis, post_mortem = [("bottleneck_analyst", "diagnosis")], [("failure_analyst", "failure_analysis")]
    seen = [entry for entry in messages(tuner) if entry[1] not in ("incumbent", "objection")]
    spoken = [entry for place, entry in enumerate(seen) if entry[1] != "proposal" or seen[place + 1][1] == "approval"]
    assert spoken == [
        *success, *analysis, *turn, *success, *analysis, *turn, *failure, *post_mortem, *turn, *success,
    ]  # fmt: skip


def test_out_of_memory_is_answered_with_recomputation():
    task = small_task()
    tuner = Optico(task)
    outcomes = iter(["ok", "oom", "ok"])
    (first, _), (second, _) = campaign(tuner, task, lambda _: (next(outcomes), 1.0, 40e9), runs=2)
    asked, again = (tuner.trace[place].changes for place in (0, 1))
    assert first.recipe != second.recipe
    assert again == {**asked, "recompute": again["recompute"]}
    assert "failure analysis suggests" in second.reason


def test_at_most_two_revisions_then_the_last_version_runs(monkeypatch):
    with_scripts(monkeypatch, checker=[REVISE])
    task = small_task()
    tuner = Optico(task)
    campaign(tuner, task, runs=1)
    kinds = [kind for _, kind in messages(tuner)]
    assert kinds.count("proposal") == kinds.count("objection") == 3
    assert [(step.vetoed, step.ran) for step in tuner.trace] == [(True, True)]


def test_what_cannot_start_after_two_revisions_is_void(monkeypatch):
    illegal = {"reasoning": "", "lever": "tp", "changes": {"tp": 8, "pp": 16}}
    with_scripts(monkeypatch, checker=[REVISE], strategist=[illegal])
    task = small_task()
    tuner = Optico(task)
    log = campaign(tuner, task, runs=1)
    assert not task.space.problems(log[0][0].recipe)
    assert [step.illegal for step in tuner.trace if not step.stray] == [True] * 4
    assert ("failure_analyst", "failure_analysis") in messages(tuner)


def test_done_twice_ends_it(monkeypatch):
    with_scripts(monkeypatch, strategist=[DONE])
    task = small_task()
    tuner = Optico(task)
    assert campaign(tuner, task) == []
    assert tuner.stop_reason == "the strategist said twice that nothing is worth a run any more"
    assert messages(tuner)[-2:] == [("strategist", "done")] * 2


def test_done_once_does_not(monkeypatch):
    one = {"reasoning": "", "lever": "tp", "changes": {"tp": 1}}
    with_scripts(monkeypatch, strategist=[DONE, one, DONE, {**one, "changes": {"tp": 4}}])
    task = small_task()
    assert len(campaign(Optico(task), task, runs=2)) == 2


def test_fields_outside_the_space_are_dropped_and_counted(monkeypatch):
    mixed = {"reasoning": "", "lever": "tp", "changes": {"tp": 1, "lr": 1.0, "mbs": 3}}
    with_scripts(monkeypatch, strategist=[mixed])
    task = small_task()
    tuner = Optico(task)
    [(proposal, _)] = campaign(tuner, task, runs=1)
    assert proposal.changed["tp"] == (2, 1)
    assert "mbs" not in proposal.changed
    assert tuner.trace[0].dropped == 2


def test_its_own_protocol_ends_after_twenty_iterations():
    task = small_task({"protocol": "iterations"})
    tuner = Optico(task)
    assert len(campaign(tuner, task, runs=60)) == ITERATIONS
    assert tuner.stop_reason == "its 20 iterations are over"


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_searches(ablation):
    task = small_task({"ablation": ablation})
    tuner = Optico(task)
    log = campaign(tuner, task, now_and_then_out_of_memory(), runs=12)
    assert len(set(digests(log))) == 12
    senders = {sender for sender, _ in messages(tuner)}
    assert ("engineer" in senders) == (ablation == "merged")
    assert ("failure_analyst" in senders) == (ablation not in ("merged", "no-failure-analyst"))


def test_without_failure_analyst_nobody_answers_out_of_memory_with_recomputation():
    task = small_task({"ablation": "no-failure-analyst"})
    tuner = Optico(task)
    outcomes = iter(["ok", "oom", "ok"])
    campaign(tuner, task, lambda _: (next(outcomes), 1.0, 40e9), runs=2)
    assert tuner.trace[1].lever != tuner.trace[0].lever


def test_without_inception_prompts_fewer_tokens_and_the_same_search():
    logs = {}
    for ablation in ("none", "no-inception"):
        task = small_task({"ablation": ablation})
        tuner = Optico(task)
        logs[ablation] = digests(campaign(tuner, task, runs=5)), tuner.usage["input_tokens"]
    assert logs["none"][0] == logs["no-inception"][0]
    assert logs["none"][1] > logs["no-inception"][1]


def test_without_the_pool_history_is_lost():
    def repeated(ablation):
        task = small_task({"ablation": ablation})
        tuner = Optico(task)
        campaign(tuner, task, as_predicted(task), runs=15)
        return labels(tuner.trace)["step_repetition"]

    assert repeated("no-pool") >= repeated("none") == 0
