"""Arrangements that talk through a pool: whoever has something to answer acts, until a draft is ready to run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask
from baselines.agents.desk import Checked, Desk, Draft
from baselines.agents.pool import Message, Pool, Role

EXECUTOR = "executor"
"""The sender of what code publishes: the incumbent, results and failures."""

MAX_ACTS = 40
"""Messages in one deliberation; more is a team that talks in circles."""


class PooledDesk(Desk):
    """A team around a pool. The executor is code: it runs drafts and publishes the incumbent, results and failures."""

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        self.pool = self.new_pool()
        self.team = self.new_team()
        self._best = ""

    @abstractmethod
    def new_team(self) -> Sequence[Role]:
        """The seats, in the order in which they act when several could."""

    @abstractmethod
    def publish(self, role: Role, body: Mapping[str, Any]) -> Message:
        """Put a role's reply into the pool, under the kind that it is."""

    @abstractmethod
    def conclusion(self, message: Message) -> list[Draft] | None:
        """What a message means for this deliberation: drafts to run, an empty list to give up, None to go on."""

    def new_pool(self) -> Pool:
        """An empty pool."""
        return Pool()

    def inception(self, role: str) -> str:
        """As the seat has it."""
        return next(seat.inception for seat in self.team if seat.name == role)

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """Let roles act, in turn, until a message concludes the deliberation."""
        for _ in range(MAX_ACTS):
            role = self.pool.next_of(self.team)
            if role is None:
                return []
            drafts = self.conclusion(self.act(role, attempt))
            if drafts is not None:
                return drafts
        return []

    def act(self, role: Role, attempt: int) -> Message:
        """Ask a role what it makes of its messages, and publish the reply."""
        turn = {"iteration": self.iteration + 1, "attempt": attempt, "runs": len(self.history)}
        parts = {"turn": turn, "messages": self.pool.read(role)}
        return self.publish(role, self.say(role.name, parts, role.request, role.schema))

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """File the outcome of a run and publish it, with the incumbent where it is a new one."""
        super().tell(proposal, report)
        if report.status in INFRASTRUCTURE_FAULTS:
            return
        trial = self.history.trial(proposal.recipe)
        if self.incumbent.digest != self._best:
            self._best = self.incumbent.digest
            self.pool.publish(EXECUTOR, "incumbent", self.iteration, self.incumbent_facts())
        kind = self.outcome(report)
        body, brief = (self.run_facts(trial, full=full) for full in (True, False))
        self.pool.publish(EXECUTOR, kind, self.iteration, body, brief)

    def outcome(self, report: RunReport) -> str:
        """The kind of message that a run becomes."""
        return "result" if report.status == "ok" else "failure"

    def proposal_body(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """A proposal as published: with its full configuration and what the stack's own checks say of it."""
        changes = reply.get("changes", {})
        checked = self.check(Draft(changes, reply.get("lever", ""), reply.get("reasoning", "")))
        return {
            **reply,
            "changes": dict(changes),
            "values": dict(self.task.space.values(checked.recipe)),
            "checks": list(checked.faults),
            **({} if checked.faults else self.estimate_facts(checked.recipe)),
        }

    def last_body(self, kind: str) -> Mapping[str, Any]:
        """The newest message of a kind; empty where there is none."""
        message = self.pool.last(kind)
        return {} if message is None else message.body

    def last_draft(self, *, vetoed: bool = False) -> Draft:
        """The newest proposal, to be run."""
        body = self.last_body("proposal")
        return Draft(body["changes"], body.get("lever", ""), body.get("reasoning", ""), vetoed)

    def refuse(self, checked: Checked) -> None:
        """What cannot be run is a failure like any other: the pool hears of it."""
        super().refuse(checked)
        body = {
            "status": "invalid",
            "changes": dict(checked.draft.changes),
            "values": dict(self.task.space.values(checked.recipe)),
            "message": "; ".join(checked.faults)[:600],
        }
        brief = {key: body[key] for key in ("status", "changes")}
        self.pool.publish(EXECUTOR, "failure", self.iteration, body, brief)
