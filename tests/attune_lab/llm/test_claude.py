"""Claude behind the interface, against a local server that speaks its protocol."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import Request, UnusableReply
from attune_lab.llm.claude import ClaudeLLM
from attune_lab.llm.service import MAX_ATTEMPTS, Service

pytest.importorskip("anthropic")
sys.path.insert(0, str(Path(__file__).parent))
from claude_stub import events, good, refusal, stub

SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "tp": {"type": "integer", "enum": [1, 2, 4]}},
    "required": ["reasoning", "tp"],
    "additionalProperties": False,
}
REQUEST = Request("strategist", "You are the strategist.", "What next?", {"secret": "facts"}, SCHEMA, max_tokens=300)
BODY = {"reasoning": "less waiting", "tp": 2}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now, self.waits = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)


def ask(*answers, model="claude-opus-5", **settings):
    """What the stub's answers make of `REQUEST`, the requests it saw, and the clock."""
    clock = Clock()
    with stub(*answers) as (url, seen):
        llm = ClaudeLLM(Service(model, base_url=url, clock=clock, sleep=clock.sleep, **settings))
        try:
            return llm.complete(REQUEST), seen, clock
        except (UnusableReply, EnvironmentFault, UserError) as error:
            return error, seen, clock


def test_a_good_reply_with_its_tokens_and_dollars():
    reply, seen, _ = ask(good(BODY))
    assert reply.body == BODY
    assert (reply.input_tokens, reply.output_tokens, reply.estimated) == (1110, 20, False)
    assert reply.usd == pytest.approx((10 * 5 + 100 * 6.25 + 1000 * 0.5 + 20 * 25) / 1e6)
    assert len(seen) == 1


def test_one_forced_tool_with_the_schema_and_a_cached_system_text():
    _, [(headers, sent)], _ = ask(good(BODY))
    assert headers["authorization"] == "Bearer test-key"
    assert sent["tool_choice"] == {"type": "tool", "name": "reply"}
    assert [tool["input_schema"] for tool in sent["tools"]] == [SCHEMA]
    assert sent["system"] == [{"type": "text", "text": REQUEST.system, "cache_control": {"type": "ephemeral"}}]
    assert sent["messages"] == [{"role": "user", "content": "What next?"}]
    assert "secret" not in str(sent)


def test_a_dated_name_has_its_models_price_and_an_unknown_model_none():
    assert ask(good(BODY), model="claude-opus-5-20260501")[0].usd > 0
    assert math.isnan(ask(good(BODY), model="claude-opus-5-5")[0].usd)


@pytest.mark.parametrize("busy", [refusal(429, "rate_limit_error", retry_after="3"), refusal(529, "overloaded_error")])
def test_a_busy_service_is_asked_again(busy):
    reply, seen, clock = ask(busy, busy, good(BODY))
    assert reply.body == BODY
    assert len(seen) == 3
    assert clock.waits == ([3.0, 3.0] if busy[0] == 429 else [0.5, 1.0])


def test_a_retry_after_beyond_the_deadline_is_not_waited_for():
    error, seen, clock = ask(refusal(429, "rate_limit_error", retry_after="4000000"), deadline_s=60)
    assert isinstance(error, EnvironmentFault)
    assert "no reply from claude-opus-5 within 60 s: the service says 429" in str(error)
    assert (len(seen), clock.waits) == (1, [])


def test_a_service_that_stays_busy_is_given_up():
    error, seen, _ = ask(refusal(529, "overloaded_error"))
    assert isinstance(error, EnvironmentFault)
    assert len(seen) == MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (good({"reasoning": "x", "tp": 3}), "tp is none of 1, 2, 4"),
        (good({"tp": 2}), "lacks reasoning"),
        (good({**BODY, "pp": 1}), "has pp, which is not asked for"),
        (events(text="I would rather chat.", stop="end_turn"), "the tool reply was not called"),
        (events(tool_json='{"reasoning": "long', stop="max_tokens"), "longer than the limit"),
    ],
)
def test_an_unusable_reply_goes_back_once_with_what_is_wrong(bad, why):
    reply, seen, _ = ask(bad, good(BODY))
    assert reply.body == BODY
    assert reply.output_tokens == 40
    assert seen[1][1]["messages"][0]["content"].startswith("What next?")
    assert why in seen[1][1]["messages"][0]["content"]
    error, seen, _ = ask(bad)
    assert isinstance(error, UnusableReply)
    assert why in str(error)
    assert (error.spent.output_tokens, len(seen)) == (40, 2)


def test_a_stream_that_is_cut_is_no_reply():
    reply, seen, _ = ask(events(tool_json='{"reasoning": "", "tp": 2}', stop=None), good(BODY))
    assert (reply.body, len(seen)) == (BODY, 2)
    error, _, _ = ask(events(tool_json='{"reasoning": "", "tp": 2}', stop=None), deadline_s=5)
    assert isinstance(error, EnvironmentFault)
    assert "cut off" in str(error)


@pytest.mark.parametrize(
    "nonsense",
    [(200, {}, "{}"), (200, {}, "event: message_start\ndata: {nonsense\n\n"), events(tool_json='{"tp": oops}')],
)
def test_what_is_not_in_the_services_format_is_tried_again(nonsense):
    reply, seen, _ = ask(nonsense, good(BODY))
    assert (reply.body, len(seen)) == (BODY, 2)


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (refusal(401, "authentication_error"), "ANTHROPIC_API_KEY"),
        (refusal(404, "not_found_error"), "check the model's name"),
        (refusal(400, "invalid_request_error"), "scripted invalid_request_error"),
    ],
)
def test_what_waiting_cannot_mend_is_said_at_once(answer, advice):
    error, seen, _ = ask(answer)
    assert isinstance(error, UserError)
    assert advice in str(error)
    assert len(seen) == 1


def test_nobody_listens():
    with stub(good(BODY)) as (url, _):
        pass
    clock = Clock()
    with pytest.raises(EnvironmentFault, match="the connection failed"):
        ClaudeLLM(Service(base_url=url, clock=clock, sleep=clock.sleep, deadline_s=1.0)).complete(REQUEST)


def test_without_a_key_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UserError, match="set ANTHROPIC_API_KEY"):
        Service()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UserError, match=r"pip install 'attune-lab\[agent\]'"):
        Service()
