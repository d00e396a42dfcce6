"""Putting a streamed message together, held to the format of the Messages API."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from attune_lab.llm.allowance import Spent
from attune_lab.llm.prices import Price
from attune_lab.llm.tokens import estimated_tokens

PARTS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
"""The blocks that are understood, with the parts that go back. **Source:** the types of anthropic 2.14."""

GROWING: Mapping[str, tuple[str, str]] = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""Kind of a delta: the block it belongs to, and its own part."""

USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")

CUTS = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Stop reasons that may leave the last tool call unfinished."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class NotInFormat(Exception):
    """What came is no message; says what is wrong."""


class Draft:
    """A message as far as it has come. Feed it the events in order, then ask for what is finished."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._usage: dict[str, int] = {}
        self._told = self._ended = False
        self._stop_reason = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Add an event, as JSON has it; kinds that are not known are passed over, as the service asks of clients.

        Raises:
            NotInFormat: it does not fit what came before.
        """
        kind = event.get("type")
        if kind == "message_start":
            self._count(_mapping(event, "message"))
        elif kind == "content_block_start":
            if event.get("index") != len(self._blocks) or (self._blocks and not self._blocks[-1].closed):
                raise NotInFormat("its blocks are out of order")
            self._blocks.append(_Block(_mapping(event, "content_block")))
        elif kind in ("content_block_delta", "content_block_stop"):
            if not self._blocks or event.get("index") != len(self._blocks) - 1 or self._blocks[-1].closed:
                raise NotInFormat("its blocks are out of order")
            if kind == "content_block_stop":
                self._blocks[-1].closed = True
            else:
                self._blocks[-1].grow(_mapping(event, "delta"))
        elif kind == "message_delta":
            reason = _mapping(event, "delta").get("stop_reason")
            self._stop_reason = reason if isinstance(reason, str) and _NAME.fullmatch(reason) else ""
            self._count(event)
            self._told = True
        elif kind == "message_stop":
            self._ended = True

    def finished(self) -> tuple[tuple[Mapping[str, Any], ...], str]:
        """The content and the stop reason. Texts that say nothing are left out, since the service takes none back, and
        so is a tool call that a limit cut off.

        Raises:
            NotInFormat: it was cut, or a block is not as it must be.
        """
        if not (self._stop_reason and self._ended and all(block.closed for block in self._blocks)):
            raise NotInFormat("the answer was cut off")
        content = [block.finished() for block in self._blocks if not self._cut(block)]
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        if len(set(calls)) < len(calls):
            raise NotInFormat("two of its tool calls have one id")
        return tuple(block for block in content if block.get("text", "…").strip()), self._stop_reason

    def spent(self, price: Price | None) -> Spent:
        """What was used so far, as the service says; output that it has not told of yet by its length."""
        new, written, read, output = (self._usage.get(key, 0) for key in USAGE)
        if not self._told:
            output = max(output, sum(block.tokens for block in self._blocks))
        used = Spent(new + written + read, output)
        if price is None:
            return Spent(used.input_tokens, output, math.nan if used.tokens else 0.0)
        return Spent(used.input_tokens, output, price.usd(new=new, written=written, read=read, output=output))

    def _cut(self, block: _Block) -> bool:
        return self._stop_reason in CUTS and block is self._blocks[-1] and not block.whole

    def _count(self, event: Mapping[str, Any]) -> None:
        """Figures of a later event replace those of an earlier one: they are totals."""
        for key, figure in _mapping(event, "usage").items():
            if key in USAGE and figure is not None:
                if isinstance(figure, bool) or not isinstance(figure, int) or figure < 0:
                    raise NotInFormat(f"its {key} are no number")
                self._usage[key] = figure


class _Block:
    """One block of the content as far as it has come."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.kind = str(start.get("type"))
        if self.kind not in PARTS:
            raise NotInFormat("it has a block of a kind that was not asked for")
        self._start = {part: start.get(part, "") for part in PARTS[self.kind]}
        self._grown: dict[str, list[str]] = {}
        self.closed = False

    @property
    def tokens(self) -> int:
        """Of what has come, by its length."""
        return estimated_tokens("".join(piece for pieces in self._grown.values() for piece in pieces))

    @property
    def whole(self) -> bool:
        """Whether its parts are as they must be."""
        try:
            self.finished()
        except NotInFormat:
            return False
        return True

    def grow(self, delta: Mapping[str, Any]) -> None:
        """Add a piece of text; citations and the like, which nobody asked for, are passed over."""
        kind, part = GROWING.get(str(delta.get("type")), ("", ""))
        if not kind:
            return
        piece = delta.get(part)
        if kind != self.kind or not isinstance(piece, str):
            raise NotInFormat("its blocks are mixed up")
        self._grown.setdefault(part, []).append(piece)

    def finished(self) -> dict[str, Any]:
        """The block as it goes back to the service.

        Raises:
            NotInFormat: it is not as it must be.
        """
        block: dict[str, Any] = {"type": self.kind, **self._start}
        for part, pieces in self._grown.items():
            if part == "partial_json":
                block["input"] = _read("".join(pieces)) if any(pieces) else block["input"]
            else:
                block[part] += "".join(pieces)
        if self.kind != "tool_use":
            return block
        if not isinstance(block["input"], dict):
            raise NotInFormat("the input of a tool call is no object")
        if not all(isinstance(block[key], str) and _NAME.fullmatch(block[key]) for key in ("id", "name")):
            raise NotInFormat("a tool call has no name or id")
        return block


def _read(text: str) -> Any:
    """The JSON of a tool's input, with finite numbers only."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise NotInFormat("the input of a tool call is not JSON") from error
    return value


def _mapping(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = event.get(key)
    if not isinstance(found, Mapping):
        raise NotInFormat(f"an event lacks {key}")
    return found
