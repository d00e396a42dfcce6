"""The local Messages API refuses what the real one refuses, and the SDK understands what it says."""

from __future__ import annotations

import json

import pytest

from experiments.claude_offline.messages_api import Fail, Say, call, cassette, messages_api, text, thinking
from experiments.claude_offline.messages_rules import refusal, signature, usage

TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
MARK = {"cache_control": {"type": "ephemeral"}}


def request(*contents, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return {"model": "m", "max_tokens": 9, "messages": messages, "tools": [TOOL], **fields}


GOOD = [
    request("hi"),
    request("hi", [text("Look."), USE], [RESULT, text("and more")]),
    request("hi", [thinking("Hm."), USE], [RESULT]),
    request("hi", system=[{**text("s"), **MARK}], tools=[{**TOOL, **MARK}]),
    request("hi", tool_choice={"type": "tool", "name": "read"}, output_config={"effort": "low"}),
]
BAD = {
    "without messages": (request(), "at least one message"),
    "twice the same role": ({**request("a"), "messages": request("a")["messages"] * 2}, "alternate"),
    "the assistant last": (request("a", [text("b")]), "must end with a user message"),
    "empty content": (request(""), "non-empty"),
    "empty text": (request([text(" ")]), "must be non-empty"),
    "a call without its result": (request("a", [USE], [text("b")]), "without tool_result"),
    "a result without its call": (request("a", [text("b")], [RESULT]), "unexpected tool_use_id"),
    "a result too late": (request("a", [USE], [RESULT], [text("b")], [RESULT]), "unexpected tool_use_id"),
    "two results": (request("a", [USE], [RESULT, RESULT]), "single result"),
    "a result after text": (request("a", [USE], [text("b"), RESULT]), "must come first"),
    "an id twice": (request("a", [USE], [RESULT], [USE], [RESULT]), "unique"),
    "a call with a list": (request("a", [{**USE, "input": []}], [RESULT]), "valid dictionary"),
    "edited thinking": (request("a", [{**thinking("x"), "thinking": "y"}], [text("b")]), "Invalid `signature`"),
    "a strange block": (request([{"type": "hologram"}]), "does not match"),
    "five marks": (request([{**text("a"), **MARK}] * 5), "maximum of 4"),
    "no limit": (request("a", max_tokens=0), "max_tokens"),
    "a temperature": (request("a", temperature=0), "Extra inputs"),
    "an effort": (request("a", output_config={"effort": "none"}), "effort"),
    "a tool twice": (request("a", tools=[TOOL, TOOL]), "unique"),
    "a tool's name": (request("a", tools=[{**TOOL, "name": "rm -rf"}]), "match pattern"),
    "a tool's schema": (request("a", tools=[{**TOOL, "input_schema": {}}]), "'object'"),
    "a forced tool that is not there": (request("a", tool_choice={"type": "tool", "name": "x"}), "not found"),
}


@pytest.mark.parametrize("body", GOOD)
def test_what_is_right_is_taken(body):
    assert refusal(body) == ""


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_is_refused(kind):
    body, why = BAD[kind]
    assert why in refusal(body)


def test_the_cache_holds_what_was_marked():
    cache = set()
    first = usage(request([{**text("a" * 400), **MARK}]), cache)
    second = usage(request([{**text("a" * 400), **MARK}], [text("b" * 400)], [{**text("c"), **MARK}]), cache)
    other = usage(request([{**text("z" * 400), **MARK}]), cache)
    assert first["cache_read_input_tokens"] == other["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"] > 100
    assert usage(request([text("a" * 400)]), set())["cache_creation_input_tokens"] == 0


def test_the_sdk_reads_a_plain_message_and_its_errors(tmp_path):
    anthropic = pytest.importorskip("anthropic")
    path = tmp_path / "talk.json"
    path.write_text(
        json.dumps({"answers": [{"content": [text("Hm."), call("read", {"n": 1})], "stop_reason": "tool_use"}]})
    )
    with messages_api(cassette(path)) as api:
        client = anthropic.Anthropic(api_key="k", base_url=api.url, max_retries=0)
        message = client.messages.create(**request("hi"))
        assert [block.to_dict() for block in message.content] == [text("Hm."), {**USE, "input": {"n": 1}}]
        assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", api.billed[0]["output_tokens"])
        with pytest.raises(anthropic.BadRequestError, match="alternate"):
            client.messages.create(**BAD["twice the same role"][0])
    with messages_api([Fail(529), Fail(401)]) as api:
        client = anthropic.Anthropic(api_key="k", base_url=api.url, max_retries=0)
        with pytest.raises(anthropic.OverloadedError):
            client.messages.create(**request("hi"))
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**request("hi"))


def test_the_sdks_own_stream_agrees():
    anthropic = pytest.importorskip("anthropic")
    said = Say([thinking("Hm."), text("ab" * 5000), call("read", {"long": "x" * 9000})])
    with messages_api([said]) as api:
        client = anthropic.Anthropic(api_key="k", base_url=api.url, max_retries=0)
        with client.messages.stream(**request("hi")) as stream:
            message = stream.get_final_message()
    assert message.content[0].signature == signature("Hm.")
    assert message.content[1].text == "ab" * 5000
    assert message.content[2].input == {"long": "x" * 9000}
