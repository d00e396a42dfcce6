"""A shared pool of messages: roles publish, and read what they subscribe to.

**Source:** MetaGPT (arXiv 2308.00352): agents do not talk one to one but publish structured messages to one pool, pull
what their profile subscribes to, and act once all they depend on has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        number: place in the pool.
        iteration: which run it is about; 0 for the recipe as it came in.
        kind: what roles subscribe to (``proposal``, ``result`` …).
        body: in full.
        brief: what is left of it once it is older than a role's window.
    """

    number: int
    iteration: int
    sender: str
    kind: str
    body: Mapping[str, Any]
    brief: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Role:
    """One seat in a team.

    Attributes:
        inception: who it is and what it must not do, written once; the head of its system text.
        awaits: it acts when a message of one of these kinds is there that it has not answered.
        needs: and only once each of these kinds has been published.
        reads: kind -> window: so many of the newest in full, older ones in brief; other kinds it never sees.
        request: what is wanted of it in every turn.
        schema: of its replies.
    """

    name: str
    inception: str
    awaits: frozenset[str]
    reads: Mapping[str, int]
    request: str
    schema: Mapping[str, Any]
    needs: frozenset[str] = frozenset()


class Pool:
    """All messages of one campaign, in order; nothing is ever taken out, and nothing survives the campaign."""

    def __init__(self, *, last_only: bool = False) -> None:
        """``last_only``: every role sees the last message and no other (the pool switched off)."""
        self._messages: list[Message] = []
        self._read_up_to: dict[str, int] = {}
        self._last_only = last_only

    def __len__(self) -> int:
        return len(self._messages)

    def publish(
        self, sender: str, kind: str, iteration: int, body: Mapping[str, Any], brief: Mapping[str, Any] | None = None
    ) -> Message:
        """Add a message and return it; without ``brief`` nothing of it outlives the window."""
        message = Message(len(self._messages), iteration, sender, kind, body, brief or {})
        self._messages.append(message)
        return message

    def last(self, kind: str) -> Message | None:
        """The newest message of a kind, or None."""
        return next((message for message in reversed(self._messages) if message.kind == kind), None)

    def fires(self, role: Role) -> bool:
        """Whether ``role`` has something to answer and everything it needs."""
        seen = self._read_up_to.get(role.name, 0)
        waiting = any(message.kind in role.awaits for message in self._messages[seen:])
        return waiting and role.needs <= {message.kind for message in self._messages}

    def next_of(self, team: Sequence[Role]) -> Role | None:
        """The first role of ``team``, in its order, that fires."""
        return next((role for role in team if self.fires(role)), None)

    def read(self, role: Role) -> list[dict[str, Any]]:
        """What ``role`` sees, oldest first, JSON-ready; all of it counts as answered from now on."""
        self._read_up_to[role.name] = len(self._messages)
        mine = [message for message in self._messages if message.kind in role.reads]
        if self._last_only:
            mine = [message for message in self._messages[-1:] if message.kind in role.reads]
        newer: dict[str, int] = {}
        shown = []
        for message in reversed(mine):
            newer[message.kind] = newer.get(message.kind, 0) + 1
            content = message.body if newer[message.kind] <= role.reads[message.kind] else message.brief
            if content:
                shown.append({"kind": message.kind, "iteration": message.iteration, **content})
        return shown[::-1]
