"""What the Messages API demands of a request, and what it reads from its cache.

Sources: the error messages and limits of platform.claude.com/docs/en/api/messages, "tool use" and "prompt caching";
not modelled: the shortest text that is cached, and that the cache forgets after minutes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

FIELDS = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "output_config", "thinking",
    "stop_sequences", "metadata", "cache_control", "service_tier",
}  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
MOST_MARKS = 4
MARK_REACH = 20
"""Blocks before a mark in which the service looks for an earlier entry of its cache."""


def signature(thinking: str) -> str:
    """What a thinking block is signed with."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def tokens(value: Any) -> int:
    """About as many tokens as JSON of this length has."""
    return -(-len(json.dumps(value)) // 4)


def refusal(body: Json, *, counting: bool = False, forcible: bool = True, paused: bool = False) -> str:
    """Why the service would answer 400, or an empty text; ``paused``: it was the service that broke off."""
    checks = [_top(body, counting), *_tools(body, forcible), *_conversation(body.get("messages"), paused)]
    marks = sum("cache_control" in block for block in _blocks(body))
    if marks > MOST_MARKS:
        checks.append(f"a maximum of {MOST_MARKS} blocks with cache_control may be provided, found {marks}")
    return next(filter(None, checks), "")


def usage(body: Json, cache: set[str]) -> dict[str, int]:
    """Input tokens by price; ``cache``, a set of prefixes, is brought up to date."""
    blocks = _blocks(body)
    plain = [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]
    ends = [signature(json.dumps(plain[: end + 1])) for end in range(len(plain))]
    marks = [place for place, block in enumerate(blocks) if "cache_control" in block]
    near = {place for mark in marks for place in range(max(mark - MARK_REACH, 0), mark + 1)}
    read = max((place + 1 for place in near if ends[place] in cache), default=0)
    written = max([place + 1 for place in marks] + [read])
    cache.update(ends[mark] for mark in marks)
    return {
        "input_tokens": sum(map(tokens, plain[written:])) + 3,
        "cache_creation_input_tokens": sum(map(tokens, plain[read:written])),
        "cache_read_input_tokens": sum(map(tokens, plain[:read])),
    }


def _blocks(body: Json) -> list[Json]:
    """Everything that is read, in the order in which the cache has it."""
    system = body.get("system") or []
    found = list(body.get("tools") or [])
    found += [{"type": "text", "text": system}] if isinstance(system, str) else system
    for message in body.get("messages") or []:
        content = message.get("content")
        found += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return found


def _top(body: Json, counting: bool) -> str:
    if extra := body.keys() - FIELDS:
        return f"{sorted(extra)[0]}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model: Field required"
    if not counting and (not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1):
        return "max_tokens: Input should be greater than or equal to 1"
    if body.get("output_config", {}).get("effort", "high") not in EFFORTS:
        return "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    if any(block.get("type") == "text" and not block.get("text", "").strip() for block in _blocks(body)):
        return "text content blocks must be non-empty"
    return ""


def _tools(body: Json, forcible: bool) -> Iterator[str]:
    tools = body.get("tools") or []
    names = [tool.get("name", "") for tool in tools]
    for tool, name in zip(tools, names, strict=True):
        if not NAME.fullmatch(name):
            yield f"tools: name {name!r} should match pattern {NAME.pattern}"
        if names.count(name) > 1:
            yield "tools: Tool names must be unique"
        if tool.get("input_schema", {}).get("type") != "object":
            yield f"tools.{name}.input_schema.type: Input should be 'object'"
    choice = body.get("tool_choice", {})
    if not forcible and choice.get("type") in ("any", "tool"):
        yield "tool_choice: forced tool use is not supported for this model"
    if choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"Tool '{choice.get('name')}' not found in provided tools"


def _conversation(messages: Any, paused: bool) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    roles = [message.get("role") for message in messages]
    if roles != [("user", "assistant")[place % 2] for place in range(len(roles))]:
        yield "messages: roles must alternate between user and assistant, and begin with user"
    if roles[-1] != "user" and not paused:
        yield "This model does not support assistant message prefill. The conversation must end with a user message"
    seen, open_calls = set[Any](), list[Any]()
    for place, message in enumerate(messages):
        content = message.get("content")
        if not content:
            yield f"messages.{place}: all messages must have non-empty content"
        blocks = [] if isinstance(content, str) else content or []
        yield from _results(place, blocks, open_calls)
        open_calls = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
        if len(set(open_calls) | seen) < len(open_calls) + len(seen):
            yield f"messages.{place}: tool_use ids must be unique"
        seen.update(open_calls)
        yield from (_block(place, block) for block in blocks)


def _results(place: int, blocks: list[Json], open_calls: list[Any]) -> Iterator[str]:
    """Every call of the message before has its result here, ahead of all else, and nothing else has one."""
    results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if missing := [call for call in open_calls if call not in results]:
        yield f"messages.{place - 1}: tool_use ids without tool_result blocks immediately after: {missing[0]}"
    if strange := [result for result in results if result not in open_calls]:
        yield f"messages.{place}: unexpected tool_use_id found in tool_result blocks: {strange[0]}"
    if len(set(results)) < len(results):
        yield f"messages.{place}: each tool_use must have a single result"
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        yield f"messages.{place}: tool_result blocks must come first"


def _block(place: int, block: Json) -> str:
    kind = block.get("type")
    if kind == "tool_use" and not (isinstance(block.get("input"), dict) and NAME.fullmatch(block.get("name", ""))):
        return f"messages.{place}: tool_use.input: Input should be a valid dictionary"
    if kind == "thinking" and block.get("signature") != signature(block.get("thinking", "")):
        return f"messages.{place}: Invalid `signature` in `thinking` block"
    if kind not in ("text", "tool_use", "tool_result", "thinking", "redacted_thinking"):
        return f"messages.{place}: Input tag {kind!r} found does not match any of the expected tags"
    return ""
