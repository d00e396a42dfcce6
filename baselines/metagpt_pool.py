"""A MetaGPT pool: a standard operating procedure of roles around a shared pool of messages.

**Source:** MetaGPT (arXiv 2308.00352).

Faithful: roles of a software company in a fixed procedure; each publishes structured messages to one pool and pulls
what it subscribes to; a role acts once all it depends on is there; executable feedback sends a failed run back to the
engineer, who mends it until it runs or three attempts are used up. Reconstructed: the product is a recipe, so the
product manager says what the next version is to improve, the architect which levers, the engineer writes the changes,
the reviewer checks them before they are paid for. The campaign's runs are the executable feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attune_lab.contracts import RunReport, TuningTask
from attune_lab.llm.scripted import Script
from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.desk import Draft
from baselines.agents.memory import IN_WORDS
from baselines.agents.players import dominant, failure_analysis, incumbent_of, newest, review, strategy
from baselines.agents.pool import Message, Role
from baselines.agents.pooled import PooledDesk
from baselines.agents.replies import LEVERS, TEXT, object_schema, proposal_schema, review_schema

MAX_FIXES = 3
"""Attempts of the engineer at a run that failed, as in MetaGPT's executable feedback."""

MAX_REVISIONS = 2

DOCUMENTS = {"product_manager": "requirement", "architect": "design"}


def _team(card: Facts) -> Sequence[Role]:
    """The seats, in the order of the procedure."""
    return (
        Role(
            name="reviewer",
            inception="You are the reviewer. You check the engineer's changes before they are paid for: do they start, "
            "do they fit in memory? You write no changes of your own beyond a suggested edit. " + IN_WORDS,
            awaits=frozenset({"proposal"}),
            reads={"incumbent": 1, "proposal": 1},
            request="Judge the newest proposal: `accept`, or `revise` with the violations and an edit that mends them.",
            schema=review_schema(card),
        ),
        Role(
            name="engineer",
            inception="You are the engineer. You turn the architect's design into changes of the recipe, one or two "
            "levers, and mend what failed: a review, or a run. You follow the design.",
            awaits=frozenset({"design", "objection", "failure"}),
            needs=frozenset({"design", "incumbent"}),
            reads={"incumbent": 1, "design": 1, "objection": 3, "failure": 2, "result": 2, "abandoned": 2},
            request="Write the changes against the incumbent, or set `done` when the design holds nothing new.",
            schema=proposal_schema(card),
        ),
        Role(
            name="architect",
            inception="You are the architect. For the requirement you design the next version: which levers, best "
            "first. You write no changes.",
            awaits=frozenset({"requirement"}),
            needs=frozenset({"incumbent"}),
            reads={"incumbent": 1, "requirement": 1, "result": 1},
            request="Rank the levers that serve the requirement.",
            schema=object_schema(levers_ranked=LEVERS),
        ),
        Role(
            name="product_manager",
            inception="You are the product manager. From the last runs you say what the next version must improve, and "
            "how one would see that it did. You design nothing.",
            awaits=frozenset({"result", "abandoned"}),
            needs=frozenset({"incumbent"}),
            reads={"incumbent": 1, "result": 2, "abandoned": 1},
            request="State the requirement for the next version.",
            schema=object_schema(improve=TEXT, criterion=TEXT),
        ),
    )


class MetaGptPool(PooledDesk):
    """Product manager, architect, engineer, reviewer; failed runs go back to the engineer."""

    name = "metagpt-pool"

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        self._failures = self._revisions = 0

    def new_team(self) -> Sequence[Role]:
        """The procedure's seats."""
        return _team(self.card)

    def scripts(self) -> Mapping[str, Script]:
        """By role."""
        return {"product_manager": product_manager, "architect": architect, "engineer": engineer, "reviewer": review}

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """One pass through the procedure."""
        self._revisions = 0
        return super().deliberate(attempt)

    def outcome(self, report: RunReport) -> str:
        """A failure goes back to the engineer; after `MAX_FIXES` in a row the version is abandoned."""
        self._failures = 0 if report.status == "ok" else self._failures + 1
        if self._failures > MAX_FIXES:
            self._failures = 0
            return "abandoned"
        return super().outcome(report)

    def publish(self, role: Role, body: Mapping[str, Any]) -> Message:
        """Each role's document under its kind."""
        if role.name == "engineer":
            kind = "done" if body.get("done") and not body.get("changes") else "proposal"
            said = dict(body) if kind == "done" else self.proposal_body(body)
        elif role.name == "reviewer":
            kind = "approval" if body.get("verdict") == "accept" else "objection"
            proposal = self.last_body("proposal")
            said = {**body, "changes": proposal["changes"], "lever": proposal.get("lever", "")}
        else:
            kind, said = DOCUMENTS[role.name], dict(body)
        brief = {"changes": said["changes"]} if kind == "objection" else None
        return self.pool.publish(role.name, kind, self.iteration + 1, said, brief)

    def conclusion(self, message: Message) -> list[Draft] | None:
        """Run what was approved, or the last version after two revisions; end when the engineer has nothing new."""
        if message.kind == "objection":
            self._revisions += 1
        if message.kind == "approval" or self._revisions > MAX_REVISIONS:
            return [self.last_draft(vetoed=message.kind == "objection")]
        if message.kind == "done":
            self.stop_reason = "the engineer finds nothing new in the design"
            return []
        return None


def product_manager(facts: Facts) -> dict[str, Any]:
    """The largest part of the step that is not compute."""
    part = dominant(incumbent_of(facts).get("shares", {}))
    return {
        "reasoning": "what is neither compute nor hidden behind it can be saved",
        "improve": part,
        "criterion": f"more tokens per second, and a smaller share of {part}",
    }


def architect(facts: Facts) -> dict[str, Any]:
    """The levers that can be moved, the largest expected saving first."""
    incumbent = incumbent_of(facts)
    ranked = thumb.levers(incumbent["values"], incumbent.get("shares", {}), facts["card"])
    wanted = newest(facts, "requirement").get("improve", "compute")
    return {
        "reasoning": f"the requirement is {wanted}; levers in order of what they save",
        "levers_ranked": ranked[:40],
    }


def engineer(facts: Facts) -> dict[str, Any]:
    """Mends what failed as a failure analyst would; else the best lever of the design not tried yet."""
    messages = [{**said, "kind": "diagnosis"} if said["kind"] == "design" else said for said in facts["messages"]]
    last = newest({"messages": messages}, "objection", "failure", "diagnosis")
    if last.get("kind") == "failure" and "values" in last:
        changes = {"changes": last.get("asked", {}), "lever": last.get("lever", "")}
        messages.append({"kind": "failure_analysis", **failure_analysis(facts), **changes})
    return strategy({**facts, "messages": messages})
