"""Claude behind the interfaces: a conversation with tools, and one call of one tool a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attune_lab.llm import Reply, Request, UnusableReply
from attune_lab.llm.allowance import Spent
from attune_lab.llm.chat import Answer, Tool, Turn
from attune_lab.llm.schema import problems
from attune_lab.llm.service import Count, Service

TOOL = "reply"
"""The tool the model must call; the reply is its input."""


class ClaudeChat:
    """A conversation with Claude. The instructions, the tools and what was said before are read from the cache."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def name(self) -> str:
        """The model's name."""
        return self._service.model

    def say(self, turn: Turn) -> Answer:
        """Claude's answer; see `Chat`."""
        return self._service.send(turn, end=self._service.deadline())

    def count(self, turn: Turn) -> Count:
        """Input tokens of a turn; costs a request, no tokens."""
        return self._service.count(turn, end=self._service.deadline())


class ClaudeLLM:
    """Asks Claude; the system text is marked for the service's cache."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def name(self) -> str:
        """The model's name."""
        return self._service.model

    def complete(self, request: Request) -> Reply:
        """Claude's reply. One that does not fit the schema is sent back once with what is wrong.

        Raises:
            UnusableReply: the second does not fit either.
            AllowanceSpent: the next attempt could overshoot the ceiling.
            EnvironmentFault: no reply within the deadline.
            UserError: the service refuses the key, the model or the request.
        """
        end, before = self._service.deadline(), self._service.allowance.spent
        prompt, faults = request.prompt, [""]
        for _ in range(2):
            answer = self._service.send(turn_of(request, prompt), end=end, forced=TOOL)
            body, faults = _read(answer, request.schema)
            spent = _reply({} if faults else body, self._service.allowance.spent - before)
            if not faults:
                return spent
            prompt = f"{request.prompt}\n\nYour last reply, {json.dumps(body)}, was refused: {'; '.join(faults)}."
        raise UnusableReply(f"{self.name} gave no usable reply as {request.role}: {'; '.join(faults)}", spent)


def turn_of(request: Request, prompt: str) -> Turn:
    """The turn that puts ``prompt`` to the role of a request."""
    tool = Tool(TOOL, "Your whole reply: call it once, and say nothing else.", request.schema)
    return Turn(request.system, (tool,), ({"role": "user", "content": prompt},), request.max_tokens)


def _reply(body: Mapping[str, Any], spent: Spent) -> Reply:
    return Reply(body, spent.input_tokens, spent.output_tokens, spent.usd)


def _read(answer: Answer, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The input of the tool call, and why it is not usable."""
    calls = [block for block in answer.content if block["type"] == "tool_use" and block["name"] == TOOL]
    if answer.stop_reason == "max_tokens":
        return {}, ["it was longer than the limit"]
    if not calls:
        return {}, [f"the tool {TOOL} was not called"]
    body: Mapping[str, Any] = calls[0]["input"]
    return body, problems(body, schema)
