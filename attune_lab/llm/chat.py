"""A conversation with a language model that has tools: the whole history goes in, the next answer comes out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Tool:
    """Something the model may ask for. ``schema`` is the JSON schema of its input (see `attune_lab.llm.schema`)."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One request of a conversation.

    Attributes:
        system: standing instructions, equal from turn to turn.
        tools: equal from turn to turn.
        messages: the conversation so far, JSON-ready, as the Messages API has them: ``{"role": …, "content": …}``.
        max_tokens: longest answer that is paid for.
    """

    system: str
    tools: tuple[Tool, ...]
    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int = 8192

    def digest(self, model: str) -> str:
        """SHA-256 of the turn as put to ``model``: equal turns have equal digests, another tool schema another one.

        Raises:
            ValueError, TypeError: something in it that JSON does not know.
        """
        tools = [vars(tool) for tool in self.tools]
        text = json.dumps([model, {**vars(self), "tools": tools}], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What the model said.

    Attributes:
        content: its blocks as the Messages API has them (``text``, ``tool_use`` …); they go back into the next
            turn's messages unchanged. May be empty, and a message without content cannot go back. A tool call that
            ``max_tokens`` cut off is left out; whether the others name a tool and fit its schema is for the caller.
        stop_reason: ``tool_use``, ``end_turn``, ``max_tokens``, ``refusal``, ``pause_turn`` …; never empty.
        input_tokens, output_tokens: as billed, those read from and written to the cache included.
        usd: nan where the price is not known.
    """

    content: tuple[Mapping[str, Any], ...]
    stop_reason: str
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


@runtime_checkable
class Chat(Protocol):
    """A language model that holds a conversation."""

    @property
    def name(self) -> str:
        """The name of the model, for the record."""
        ...

    def say(self, turn: Turn) -> Answer:
        """The next answer.

        Raises:
            AllowanceSpent: the answer could cost more than is left of the ceiling in tokens or dollars.
            EnvironmentFault: the model cannot be reached in time.
            UserError: the service will not have the key, the model or the request.
        """
        ...


class AllowanceSpent(Exception):
    """The ceiling in tokens or dollars is reached; the message says which. Nothing was sent."""
