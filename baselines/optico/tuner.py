"""The team at work: whose reply becomes which message, and when a draft runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attune_lab.contracts import Proposal
from attune_lab.llm.scripted import Script
from baselines.agents.desk import Draft
from baselines.agents.players import diagnosis, failure_analysis, review, strategy
from baselines.agents.pool import Message, Pool, Role
from baselines.agents.pooled import PooledDesk
from baselines.common.options import Option
from baselines.optico.roles import ABLATIONS, brief_of, team

MAX_REVISIONS = 2
ITERATIONS = 20
"""Executed configurations after which OptiCo's own protocol ends."""

SCRIPTS: Mapping[str, Script] = {
    "strategist": strategy,
    "checker": review,
    "bottleneck_analyst": diagnosis,
    "failure_analyst": failure_analysis,
    "engineer": strategy,
}


class Optico(PooledDesk):
    """OptiCo (re-implementation from the abstract).

    Options beside those of every arrangement: ``protocol`` (``budget`` or ``iterations``) and ``ablation``.
    """

    name = "optico"
    options: ClassVar[Mapping[str, Option]] = {
        "protocol": Option("budget", choices=("budget", "iterations")),
        "ablation": Option("none", choices=ABLATIONS),
    }

    def new_pool(self) -> Pool:
        """Empty; roles see the last message alone in the ablation without a pool."""
        return Pool(last_only=self.setting["ablation"] == "no-pool")

    def new_team(self) -> Sequence[Role]:
        """As the ablation has it."""
        return team(self.card, self.setting["ablation"])

    def scripts(self) -> Mapping[str, Script]:
        """Rules of thumb; the merged engineer plays as the strategist does."""
        return SCRIPTS

    def ask(self) -> Proposal | None:
        """The next recipe to run; None after `ITERATIONS` under OptiCo's own protocol."""
        if self.setting["protocol"] == "iterations" and self.iteration >= ITERATIONS:
            self.stop_reason = f"its {ITERATIONS} iterations are over"
            return None
        return super().ask()

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """One iteration up to the executor's turn."""
        self._revisions = 0
        return super().deliberate(attempt)

    def publish(self, role: Role, body: Mapping[str, Any]) -> Message:
        """A strategist's reply is a proposal, or that it is done; a checker's an approval or an objection."""
        if role.name in ("strategist", "engineer"):
            kind = "done" if body.get("done") and not body.get("changes") else "proposal"
            said = dict(body) if kind == "done" else self.proposal_body(body)
        elif role.name == "checker":
            draft = self.last_body("proposal")
            kind = "approval" if body.get("verdict") == "accept" else "objection"
            said = {**body, **{key: draft[key] for key in ("changes", "lever") if key in draft}}
        elif role.name == "failure_analyst":
            failure = self.last_body("failure")
            kind = "failure_analysis"
            said = {**body, "changes": failure.get("asked", {}), "lever": failure.get("lever", "")}
        else:
            kind, said = "diagnosis", dict(body)
        return self.pool.publish(role.name, kind, self.iteration + 1, said, brief_of(kind, said))

    def conclusion(self, message: Message) -> list[Draft] | None:
        """Run what was approved; run the last version, or give up, after two revisions; stop after two times done."""
        if message.kind == "approval" or (message.kind == "proposal" and message.sender == "engineer"):
            return [self.last_draft()]
        if message.kind == "objection":
            self._revisions += 1
            if self._revisions > MAX_REVISIONS:
                return [self.last_draft(vetoed=True)]
        if message.kind == "done":
            self._dones += 1
            if self._dones == 2:
                self.stop_reason = "the strategist said twice that nothing is worth a run any more"
                return []
        elif message.kind == "proposal":
            self._dones = 0
        return None

    _revisions = 0
    _dones = 0
