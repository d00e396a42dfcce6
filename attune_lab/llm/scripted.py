"""A model that is no model: rules answer by role, offline, the same every time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from attune_lab.llm import Reply, Request
from attune_lab.llm.schema import problems

Script = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the facts of a request to the body of the reply; nothing else goes in, so equal facts get equal replies."""

CHARACTERS_PER_TOKEN = 3.5
"""English characters a token stands for. **Source:** Anthropic's glossary, docs.anthropic.com, entry "Tokens"."""


class ScriptedLLM:
    """Answers every role by its script.

    The tokens of its replies are estimates from the length of the texts that a model would have been sent and would
    have written; nothing is paid.
    """

    name = "scripted"

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts

    def complete(self, request: Request) -> Reply:
        """The script's reply.

        Raises:
            ValueError: no script for the role, or its reply does not fit the schema; both are faults of the caller.
        """
        if request.role not in self._scripts:
            raise ValueError(f"no script plays {request.role}; there are {', '.join(sorted(self._scripts))}")
        written = json.dumps(self._scripts[request.role](request.facts), allow_nan=False)
        body = json.loads(written)
        if faults := problems(body, request.schema):
            raise ValueError(f"the script of {request.role} breaks its schema: {'; '.join(faults)}")
        asked = estimated_tokens(request.system) + estimated_tokens(request.prompt)
        return Reply(body, asked, estimated_tokens(written), estimated=True)


def estimated_tokens(text: str) -> int:
    """Tokens of ``text`` by its length; an estimate, within about a fifth for English prose."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)
