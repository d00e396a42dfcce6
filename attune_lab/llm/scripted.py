"""A model that is no model: rules answer by role, offline, the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attune_lab.llm import Reply, Request
from attune_lab.llm.allowance import Allowance, Spent
from attune_lab.llm.schema import problems
from attune_lab.llm.tokens import estimated_tokens

Script = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the facts of a request to the body of the reply; nothing else goes in, so equal facts get equal replies."""


class ScriptedLLM:
    """Answers every role by its script.

    The tokens of its replies are estimates from the length of the texts that a model would have been sent and would
    have written; nothing is paid. A ceiling on tokens holds for these estimates.
    """

    name = "scripted"

    def __init__(self, scripts: Mapping[str, Script], allowance: Allowance | None = None) -> None:
        self._scripts = scripts
        self._allowance = Allowance() if allowance is None else allowance

    def complete(self, request: Request) -> Reply:
        """The script's reply.

        Raises:
            AllowanceSpent: a model's reply could overshoot the ceiling on tokens.
            ValueError: no script for the role, or its reply does not fit the schema; both are faults of the caller.
        """
        if request.role not in self._scripts:
            raise ValueError(f"no script plays {request.role}; there are {', '.join(sorted(self._scripts))}")
        asked = estimated_tokens(request.system) + estimated_tokens(request.prompt)
        self._allowance.reserve(Spent(asked, request.max_tokens))
        written = json.dumps(self._scripts[request.role](request.facts), allow_nan=False)
        body = json.loads(written)
        if faults := problems(body, request.schema):
            raise ValueError(f"the script of {request.role} breaks its schema: {'; '.join(faults)}")
        spent = Spent(asked, estimated_tokens(written))
        self._allowance.charge(spent)
        return Reply(body, spent.input_tokens, spent.output_tokens, estimated=True)
