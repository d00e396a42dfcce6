"""Claude behind the interface, against a local server that speaks its protocol."""

from __future__ import annotations

import sys

import pytest

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import Request, UnusableReply
from attune_lab.llm.allowance import Allowance
from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.claude import ClaudeLLM
from attune_lab.llm.prices import price_of
from attune_lab.llm.service import Service
from experiments.claude_offline.messages_api import Fail, Say, call, text
from tests.attune_lab.llm.talking import service

pytest.importorskip("anthropic")

SCHEMA = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "tp": {"type": "integer", "enum": [1, 2, 4]}},
    "required": ["reasoning", "tp"],
    "additionalProperties": False,
}
REQUEST = Request("strategist", "You are the strategist.", "What next?", {"secret": "facts"}, SCHEMA, max_tokens=300)
BODY = {"reasoning": "less waiting", "tp": 2}


GOOD = Say([call("reply", BODY)])


def ask(*outcomes, **settings):
    """What the server's outcomes make of `REQUEST`, and the server."""
    with service(list(outcomes), **settings) as (sender, api, _):
        try:
            return ClaudeLLM(sender).complete(REQUEST), api
        except (UnusableReply, EnvironmentFault, UserError, AllowanceSpent) as error:
            return error, api


def test_a_good_reply_with_its_tokens_and_dollars():
    reply, api = ask(GOOD)
    assert (reply.body, reply.estimated) == (BODY, False)
    assert (reply.input_tokens, reply.output_tokens) == api.billed_tokens
    new, written, read, output = api.billed[0].values()
    assert min(new, written, output) > 0
    assert reply.usd == pytest.approx(price_of("claude-opus-5").usd(new=new, written=written, read=read, output=output))


def test_one_forced_tool_with_the_schema_and_a_cached_system_text():
    _, api = ask(GOOD)
    [(_, sent)] = api.seen
    assert sent["tool_choice"] == {"type": "tool", "name": "reply"}
    assert [tool["input_schema"] for tool in sent["tools"]] == [SCHEMA]
    assert sent["system"] == [{"type": "text", "text": REQUEST.system, "cache_control": {"type": "ephemeral"}}]
    assert sent["messages"] == [{"role": "user", "content": "What next?"}], "nobody reads it from the cache again"
    assert "secret" not in str(sent)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Say([call("reply", {"reasoning": "x", "tp": 3})]), "tp is none of 1, 2, 4"),
        (Say([call("reply", {"tp": 2})]), "lacks reasoning"),
        (Say([call("reply", {**BODY, "pp": 1})]), "has pp, which is not asked for"),
        (Say([call("other", BODY)]), "the tool reply was not called"),
        (Say([text("I would rather chat.")]), "the tool reply was not called"),
        (Say([], "refusal"), "the tool reply was not called"),
        (Say([call("reply", '{"reasoning": "long')], "max_tokens"), "longer than the limit"),
    ],
)
def test_an_unusable_reply_goes_back_once_with_what_is_wrong(bad, why):
    reply, api = ask(bad, GOOD)
    assert reply.body == BODY
    assert (reply.input_tokens, reply.output_tokens) == api.billed_tokens
    again = api.seen[1][1]["messages"][0]["content"]
    assert again.startswith("What next?")
    assert why in again
    error, api = ask(bad)
    assert isinstance(error, UnusableReply)
    assert why in str(error)
    assert (error.spent.input_tokens, error.spent.output_tokens, len(api.seen)) == (*api.billed_tokens, 2)


def test_a_model_that_cannot_be_forced_is_asked_without():
    with service([GOOD], forcible=False) as (sender, api, clock):
        llm = ClaudeLLM(sender)
        assert [llm.complete(REQUEST).body for _ in range(2)] == [BODY, BODY]
    assert ["tool_choice" in body for _, body in api.seen] == [True, False, False]
    assert clock.waits == []


def test_both_tries_have_one_deadline_and_one_ceiling():
    bad = Say([text("No.")])
    error, _ = ask(Fail(529, "100"), bad, Fail(529, "100"), GOOD, deadline_s=150)
    assert isinstance(error, EnvironmentFault)
    error, api = ask(bad, GOOD, allowance=Allowance(tokens=500))
    assert isinstance(error, AllowanceSpent)
    assert len(api.seen) == 1


def test_without_a_key_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(UserError, match="set ANTHROPIC_API_KEY"):
        Service()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UserError, match=r"pip install 'attune-lab\[agent\]'"):
        Service()
