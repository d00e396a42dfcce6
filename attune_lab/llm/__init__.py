"""Language models behind one interface: a request with a role and a schema goes in, one structured reply comes out.

`scripted.ScriptedLLM` answers from rules, offline; `claude.ClaudeLLM` asks Claude; `transcript.RecordedLLM` keeps what
either said, so that a campaign resumes and replays without asking again. `opening.open_llm` makes one from options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Request:
    """One question to a language model; what is put into it must not be changed afterwards.

    Attributes:
        role: who is asked (``strategist``, ``checker`` …); a scripted model answers by role.
        system: the role's standing instructions, equal from turn to turn.
        prompt: the question as text.
        facts: what the prompt says, as data: what a scripted model reads instead of the text. JSON-ready.
        schema: JSON schema of the reply's body; `attune_lab.llm.schema` has the keywords it may use.
        max_tokens: longest reply that is paid for.
    """

    role: str
    system: str
    prompt: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 2048

    def digest(self, model: str) -> str:
        """SHA-256 of the request as put to ``model``: equal questions have equal digests.

        Raises:
            ValueError, TypeError: a fact that JSON does not know.
        """
        text = json.dumps([model, vars(self)], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """One answer. ``body`` keeps to the request's schema; ``usd`` is 0 where nothing is paid, nan where not known.

    Tokens are as billed, those of refused attempts included, or estimates from the length of the text (``estimated``).
    """

    body: Mapping[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    estimated: bool = False


class UnusableReply(Exception):
    """The model answered, but never as the schema demands; the message says what was wrong.

    ``spent`` is a `Reply` with an empty body: the tokens were used all the same.
    """

    def __init__(self, message: str, spent: Reply) -> None:
        super().__init__(message)
        self.spent = spent


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
            UnusableReply: no reply that keeps to the schema, after a second try.
            EnvironmentFault: the model cannot be reached in time.
            UserError: the service will not have the key, the model or the request.
        """
        ...
