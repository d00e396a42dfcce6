"""Language models behind one interface: a request with a role and a schema goes in, one structured reply comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Request:
    """One question to a language model.

    Attributes:
        role: who is asked (``strategist``, ``checker`` …); a scripted model answers by role.
        system: the role's standing instructions, equal from turn to turn.
        prompt: the question as text.
        facts: what the prompt says, as data: what a scripted model reads instead of the text. JSON-ready.
        schema: JSON schema of the reply's body.
        max_tokens: longest reply that is paid for.
    """

    role: str
    system: str
    prompt: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 2048


@dataclass(frozen=True)
class Reply:
    """One answer. ``body`` keeps to the request's schema; ``usd`` is 0 where nothing is paid, nan where not known."""

    body: Mapping[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


@runtime_checkable
class LLM(Protocol):
    """A language model that answers one request at a time."""

    @property
    def name(self) -> str:
        """What answers, for the record: the name of the model, or ``scripted``."""
        ...

    def complete(self, request: Request) -> Reply:
        """The reply to ``request``.

        Raises:
            EnvironmentFault: the model cannot be reached, or does not keep to the schema.
        """
        ...
