"""The messages of one conversation: what is added, how long it may grow, and how an answer is read.

A conversation only ever grows at its end, so that the service's cache keeps its prefix, until it is longer than
`LONGEST`; then the oldest tool results are cut at once down to `SHORTER`, and it grows again from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.llm.chat import Answer, Tool, Turn

LONGEST, SHORTER = 400_000, 200_000
"""Characters of a conversation, about 100,000 tokens, beyond which old tool results are cut; and what is then left."""

KEPT_WHOLE = 8
"""The latest messages are never cut."""

STUB = 160
"""A tool result of fewer characters is not worth cutting."""

MAX_TOKENS = 16_000
"""Longest answer that is paid for."""


@dataclass(frozen=True)
class Call:
    """A tool the model asked for; ``arguments`` as sent, unchecked."""

    id: str
    name: object
    arguments: object


def calls_of(answer: Answer) -> list[Call]:
    """The tools an answer asks for, in order."""
    return [
        Call(str(block.get("id")), block.get("name"), block.get("input"))
        for block in answer.content
        if block.get("type") == "tool_use"
    ]


def result(call: Call, content: str, *, is_error: bool = False) -> dict[str, Any]:
    """The block that answers a call."""
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    return {**block, "is_error": True} if is_error else block


class Conversation:
    """What was said so far."""

    def __init__(self, system: str, tools: tuple[Tool, ...], opening: str) -> None:
        self._system, self._tools = system, tools
        self._messages: list[Mapping[str, Any]] = [{"role": "user", "content": opening}]

    def turn(self) -> Turn:
        """The next request."""
        return Turn(self._system, self._tools, tuple(self._messages), MAX_TOKENS)

    def add_answer(self, answer: Answer) -> None:
        """Keep what the model said; an empty answer cannot go back and is left out."""
        if answer.content:
            self._messages.append({"role": "assistant", "content": [dict(block) for block in answer.content]})

    def add_results(self, blocks: Sequence[Mapping[str, Any]]) -> None:
        """Answer the tools of the last answer."""
        self._messages.append({"role": "user", "content": [dict(block) for block in blocks]})
        if self.size > LONGEST:
            self.shorten()

    def add_text(self, words: str) -> None:
        """Say something to the model; beside what was said last, where the model has said nothing to it."""
        last = self._messages[-1]
        if last["role"] == "assistant":
            self._messages.append({"role": "user", "content": words})
            return
        said = last["content"]
        blocks = [{"type": "text", "text": said}] if isinstance(said, str) else list(said)
        self._messages[-1] = {"role": "user", "content": [*blocks, {"type": "text", "text": words}]}

    @property
    def size(self) -> int:
        """Characters of the messages as JSON."""
        return sum(len(json.dumps(message, ensure_ascii=False)) for message in self._messages)

    def shorten(self, to: int = SHORTER) -> bool:
        """Cut the oldest tool results until ``to`` characters are left; whether anything could be cut."""
        excess, cut = self.size - to, False
        for place, message in enumerate(self._messages[:-KEPT_WHOLE]):
            if excess <= 0:
                break
            if message["role"] != "user" or isinstance(message["content"], str):
                continue
            blocks = [_cut(block) for block in message["content"]]
            saved = len(json.dumps(message["content"], ensure_ascii=False)) - len(
                json.dumps(blocks, ensure_ascii=False)
            )
            if saved > 0:
                self._messages[place] = {**message, "content": blocks}
                excess, cut = excess - saved, True
        return cut


def _cut(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool result with a note in place of what it said."""
    content = block.get("content")
    if block.get("type") != "tool_result" or not isinstance(content, str) or len(content) <= STUB:
        return block
    note = json.dumps(
        {"shortened": f"{len(content)} characters, cut to keep the conversation short; ask again if needed"}
    )
    return {**block, "content": note}
