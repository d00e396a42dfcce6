"""What the tests of conversations share: a clock, a turn, and a service that asks the local server."""

from __future__ import annotations

from contextlib import contextmanager

from attune_lab.llm.chat import Tool, Turn
from attune_lab.llm.service import Service
from experiments.claude_offline.messages_api import messages_api

SCHEMA = {
    "type": "object",
    "properties": {"file": {"type": "string"}},
    "required": ["file"],
    "additionalProperties": False,
}
TOOLS = (Tool("read", "Reads a file.", SCHEMA), Tool("finish", "Ends it.", {"type": "object"}))
FIRST = Turn("You tune recipes.", TOOLS, ({"role": "user", "content": "Begin."},), max_tokens=500)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now, self.waits = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


@contextmanager
def service(script, model="claude-opus-5", *, counts=True, forcible=True, **settings):
    """A service that asks the server, the server, and the clock by which it waits."""
    clock = Clock()
    with messages_api(script, counts=counts, forcible=forcible) as api:
        yield Service(model, base_url=api.url, **{"clock": clock, "sleep": clock.sleep, **settings}), api, clock


def after(turn, answer, said="done"):
    """The next turn: the answer, and a result for each of its calls."""
    calls = [block["id"] for block in answer.content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call, "content": said} for call in calls]
    content = results or [{"type": "text", "text": said}]
    messages = (
        *turn.messages,
        {"role": "assistant", "content": list(answer.content)},
        {"role": "user", "content": content},
    )
    return Turn(turn.system, turn.tools, messages, turn.max_tokens)
