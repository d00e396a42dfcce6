"""A CAMEL pair: an instructor gives one instruction at a time, an assistant answers each with a concrete solution.

**Source:** CAMEL (arXiv 2303.17760).

Faithful: a task specifier makes the idea concrete once, before the dialogue; inception prompts fix who each is, forbid
changing roles, restate the task and prescribe the form of every answer; turns alternate strictly, one instruction at a
time; the instructor ends the dialogue by saying that the task is done, and a limit of turns (``turns``) bounds it.
Reconstructed: the task is one configuration to run, so there is a dialogue for every run; the assistant's last solution
runs. The scripted instructor first names the best lever, then asks for room where the formulas say it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attune_lab.llm.scripted import Script
from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.desk import Desk, Draft
from baselines.agents.players import dominant
from baselines.agents.playing import alone
from baselines.agents.replies import TEXT, changes_schema, object_schema, proposal_schema
from baselines.common.options import Option

_TASK = "The task of the pair is to settle on one configuration to run next. Never forget the task. "
INCEPTIONS: Mapping[str, str] = {
    "task_specifier": "You make a vague task concrete, in at most fifty words, from what you are shown. Be "
    "imaginative, add nothing that is not on the card.",
    "instructor": "Never forget you are the instructor and your partner is the assistant; never change roles. You "
    f"alone instruct, your partner never does. {_TASK}Give one instruction at a time, with the changes it asks for. "
    "When the assistant's solution is ready to run, set `done` and instruct nothing.",
    "assistant": "Never forget you are the assistant and your partner is the instructor; never change roles, never "
    f"instruct. {_TASK}Answer every instruction with one whole solution: all changes against the incumbent, with the "
    "reasons, or say why you cannot.",
}
NEXT = "Give the next instruction, or say that the task is done."


class CamelPair(Desk):
    """An instructor and an assistant. Options beside those of every arrangement: ``turns``."""

    name = "camel-pair"
    options: ClassVar[Mapping[str, Option]] = {"turns": Option(4, least=1, most=20)}
    _specified: Mapping[str, Any] | None = None

    def scripts(self) -> Mapping[str, Script]:
        """By role."""
        return {"task_specifier": task_specifier, "instructor": instructor, "assistant": assistant}

    def inception(self, role: str) -> str:
        """As CAMEL writes them, for this task."""
        return INCEPTIONS[role]

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """The assistant's last solution; the end when the instructor has nothing to instruct from the start."""
        shown = self.situation(attempt)
        if self._specified is None:
            schema = object_schema(task=TEXT)
            self._specified = self.say("task_specifier", {"incumbent": shown["incumbent"]}, "Specify the task.", schema)
        dialogue: list[dict[str, Any]] = []
        for _ in range(self.setting["turns"]):
            parts = {**shown, "task": self._specified.get("task", ""), "dialogue": list(dialogue)}
            asked = self.say("instructor", parts, NEXT, self._order())
            if asked.get("done"):
                break
            parts = {**parts, "instruction": dict(asked)}
            solved = self.say("assistant", parts, "Answer the instruction.", proposal_schema(self.card))
            dialogue.append({"instruction": dict(asked), "solution": dict(solved)})
        if not dialogue:
            self.stop_reason = "the instructor says that the task is done"
            return []
        solution = dialogue[-1]["solution"]
        return [Draft(solution.get("changes", {}), solution.get("lever", ""), solution.get("reasoning", ""))]

    def _order(self) -> dict[str, Any]:
        """The schema of an instruction."""
        return object_schema(instruction=TEXT, lever=TEXT, changes=changes_schema(self.card), done={"type": "boolean"})


def task_specifier(facts: Facts) -> dict[str, Any]:
    """The largest part of the step, as a task."""
    part = dominant(facts["incumbent"].get("shares", {}))
    return {"reasoning": f"{part} is the largest part beside compute", "task": f"Shorten the step, first its {part}."}


def instructor(facts: Facts) -> dict[str, Any]:
    """First the best lever by itself, then what it needs beside it, then done."""
    solution = facts["dialogue"][-1]["solution"].get("changes", {}) if facts["dialogue"] else {}
    chosen = next(alone(facts), None)
    left = {} if chosen is None else {k: v for k, v in chosen["changes"].items() if k not in solution}
    if chosen is None or not left:
        return {"reasoning": "the solution is ready", "instruction": "", "lever": "", "changes": {}, "done": True}
    lever, why = chosen["lever"], chosen["why"]
    if not solution:
        left = {lever: left[lever]} if lever in left else left
        return {"reasoning": why, "instruction": f"move {lever}: {why}", "lever": lever, "changes": left, "done": False}
    order = {"instruction": "add what it needs to start and to fit", "lever": lever, "changes": left}
    return {"reasoning": "by the formulas it would not run as it is", **order, "done": False}


def assistant(facts: Facts) -> dict[str, Any]:
    """The solution so far with what is asked for, and what must follow for it to start."""
    asked, values = facts["instruction"], facts["incumbent"]["values"]
    before = facts["dialogue"][-1]["solution"].get("changes", {}) if facts["dialogue"] else {}
    changes = thumb.completed({**before, **asked["changes"]}, values, facts["card"])
    return {"reasoning": asked["instruction"], "lever": asked["lever"], "changes": changes}
