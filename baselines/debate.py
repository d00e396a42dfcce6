"""Debate: several engineers propose, see each other's proposals, think again, and vote.

**Source:** multi-agent debate (Du et al., arXiv 2305.14325): independent answers, then rounds in which each sees those
of the others and may change its own, then the majority; measured against self-consistency in arXiv 2311.17371, and
against one strong prompt in 2402.18272, which find it no better and sensitive to its settings.

Faithful: ``n`` debaters, ``rounds`` rounds, the majority of the last, ties to the lower seat; an early end when all
agree. Reconstructed: an answer is a set of changes to the recipe. Every debater has a stand (communication, memory,
compute), as persona debates have, because scripted players without one would all say the same. A scripted debater
weighs the parts of its stand three times at first; from the second round on it takes the proposal on the table that it
would rank first without a stand. The equal token budget of such comparisons is the option ``tokens``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attune_lab.llm.scripted import Script
from baselines.agents.cards import Facts
from baselines.agents.desk import Desk, Draft
from baselines.agents.memory import IN_WORDS
from baselines.agents.playing import alone, proposal_of
from baselines.agents.replies import proposal_schema
from baselines.common.options import Option

STANDS: Mapping[str, tuple[str, ...]] = {
    "communication": ("exposed_tp", "exposed_ep", "exposed_cp", "exposed_dp", "exposed_pp"),
    "compute": ("compute", "optimizer", "host"),
    "pipeline": ("bubble", "exposed_pp"),
}
WEIGHT = 3.0
"""How much more a debater makes of the parts of its stand, before it has heard the others."""

INCEPTION = (
    "You are one of several engineers who debate the next configuration of a training recipe. Argue from your stand, "
    "which you are told each turn, but change your mind when another's proposal is better. Think step by step in "
    "`reasoning`, then decide. "
) + IN_WORDS
REQUEST = "Propose the next configuration: changes against the incumbent, one or two levers."


class Debate(Desk):
    """``n`` debaters propose, see each other's proposals for some rounds, and vote.

    Options beside those of every arrangement: ``n`` and ``rounds``.
    """

    name = "debate"
    options: ClassVar[Mapping[str, Option]] = {
        "n": Option(3, least=2, most=9),
        "rounds": Option(2, least=1, most=9),
    }

    def scripts(self) -> Mapping[str, Script]:
        """One script for all debaters."""
        return {"debater": debater}

    def inception(self, role: str) -> str:
        """A debater's."""
        return INCEPTION

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """The majority of the last round; the end when the majority has nothing to propose."""
        said: list[Mapping[str, Any]] = []
        shown = self.situation(attempt)
        for _ in range(self.setting["rounds"]):
            said = [self._speak(seat, said, shown) for seat in range(self.setting["n"])]
            if len({_answer(reply) for reply in said}) == 1:
                break
        votes = Counter(_answer(reply) for reply in said)
        winner = next(reply for reply in said if votes[_answer(reply)] == max(votes.values()))
        if winner.get("done") and not winner["changes"]:
            self.stop_reason = "the debaters agree that nothing is worth a run any more"
            return []
        return [Draft(winner.get("changes", {}), winner.get("lever", ""), winner.get("reasoning", ""))]

    def _speak(self, seat: int, said: Sequence[Mapping[str, Any]], shown: Facts) -> Mapping[str, Any]:
        """One debater's proposal, having heard ``said``, one entry a seat; nothing in the first round."""
        others = [dict(reply) for place, reply in enumerate(said) if place != seat]
        own = dict(said[seat]) if said else {}
        stand = list(STANDS)[seat % len(STANDS)]
        parts = {**shown, "stand": stand, "seat": seat, "yours": own, "others": others}
        return self.say("debater", parts, REQUEST, proposal_schema(self.card))


def _answer(reply: Mapping[str, Any]) -> str:
    """What counts as the same answer."""
    return json.dumps(reply.get("changes", {}), sort_keys=True)


def debater(facts: Facts) -> dict[str, Any]:
    """At first the best by its stand; then the proposal on the table that ranks first without one."""
    table = [reply for reply in (facts["yours"], *facts["others"]) if reply.get("changes")]
    if table:
        answers = [_answer(reply) for reply in table]
        first = next((one for one in alone(facts) if _answer(one) in answers), None)
        best = table[answers.index(_answer(first))] if first else table[0]
        return {"reasoning": best["reasoning"], "lever": best["lever"], "changes": best["changes"]}
    shares = facts["incumbent"].get("shares", {})
    weighed = {part: share * (WEIGHT if part in STANDS[facts["stand"]] else 1) for part, share in shares.items()}
    return proposal_of(next(alone(facts, weighed), None))
