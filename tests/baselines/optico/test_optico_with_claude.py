"""The whole way: OptiCo asks Claude, here a local server, and is replayed from its transcript without it."""

from __future__ import annotations

import json

import pytest

from attune_lab.contracts import EnvironmentFault
from baselines.agents.traces import labels
from baselines.optico import Optico
from experiments.claude_offline.messages_api import Fail, Say, call, messages_api
from tests.baselines.agents.agents_on_trial import digests
from tests.baselines.small_task import campaign, small_task

pytest.importorskip("anthropic")


def good(body):
    return Say([call("reply", body)])


def team(request):
    """A reply for whichever role asks; the strategist walks through micro-batch sizes, and dreams of learning rates."""
    [tool] = request["tools"]
    wanted = tool["input_schema"]["properties"]
    if "verdict" in wanted:
        return good({"reasoning": "fine", "verdict": "accept", "violations": [], "suggested_edit": {}})
    if "dominant_term" in wanted:
        return good({"reasoning": "seen", "dominant_term": "compute", "evidence": "most of it", "levers_ranked": []})
    if "cause" in wanted:
        return good({"reasoning": "", "cause": "memory", "violated_limit": "", "forbidden": [], "fallback_edit": {}})
    turn = json.loads(request["messages"][0]["content"].split("<data>")[1].split("</data>")[0])
    size = {1: 2, 2: 4}.get(turn["iteration"], 8)
    return good({"reasoning": "larger GEMMs", "lever": "mbs", "changes": {"mbs": size, "lr": 1.0}})


@pytest.fixture
def online(monkeypatch):
    def connect(url):
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")

    return connect


def test_a_campaign_with_claude_replays_without_it(online, tmp_path, monkeypatch):
    options = {"llm": "claude", "model": "claude-opus-5", "transcript": str(tmp_path / "talk.jsonl")}
    task = small_task()
    with messages_api(team) as api:
        online(api.url)
        first = Optico(small_task(options))
        log = campaign(first, task, lambda _: ("ok", 1.0, 4e10), runs=2)
        assert len(api.seen) == 2 + 2 * 2, "an analysis, a proposal and a review a run"
    assert [proposal.changed["mbs"] for proposal, _ in log] == [(1, 2), (1, 4)]
    assert labels(first.trace)["fields_outside_space"] == 2
    assert (first.usage["input_tokens"], first.usage["output_tokens"]) == api.billed_tokens
    assert first.usage["usd"] > 0
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    again = Optico(small_task(options))
    assert digests(campaign(again, task, lambda _: ("ok", 1.0, 4e10), runs=2)) == digests(log)
    assert again.usage == first.usage


def test_a_ceiling_in_dollars_stops_it_before_it_is_passed(online):
    with messages_api(team) as api:
        online(api.url)
        tuner = Optico(small_task({"llm": "claude", "usd": "0.2"}))
        assert campaign(tuner, small_task(), lambda _: ("ok", 1.0, 4e10), runs=40)
    assert "of its $0.20 are used, and the next answer could take" in tuner.stop_reason
    assert 0.1 < tuner.usage["usd"] <= 0.2
    assert len(api.seen) == len(api.billed)


def test_an_unreachable_service_is_the_environments_fault(online):
    with messages_api([Fail(429, "100000")]) as api:
        online(api.url)
        task = small_task({"llm": "claude"})
        with pytest.raises(EnvironmentFault, match="run the same command again later"):
            campaign(Optico(task), task)
