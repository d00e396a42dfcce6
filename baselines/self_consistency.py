"""Self-consistency: one engineer is asked the same question several times, and the answer given most often is run.

**Source:** self-consistency (Wang et al., arXiv 2203.11171): sample several lines of reasoning, take the answer by
majority; as the single-agent side of the comparisons in arXiv 2311.17371 and 2402.18272.

Faithful: independent samples of one prompt (``k``), each reasoning before it decides; majority over the final answer,
ties to the one given first. Reconstructed: an answer is a set of changes to the recipe, equal when all of it is equal;
after a failure the same engineer sees the failure. The scripted engineer has no randomness of its own: a sample stands
for one by passing over its best candidates now and then, as a hash of turn and sample decides. The equal token budget
of such comparisons is the option ``tokens``.
"""

from __future__ import annotations

import hashlib
import itertools
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

INCEPTION = (
    "You are an engineer who tunes a training recipe. Think step by step in `reasoning`: what is the incumbent's step "
    "spent on, which lever would shorten it, does it fit in memory? Then decide. After a run out of memory, consider "
    "the same with more recomputation. "
) + IN_WORDS
REQUEST = "Propose the next configuration: changes against the incumbent, one or two levers."


class SelfConsistency(Desk):
    """Majority over ``k`` samples of one engineer. Options beside those of every arrangement: ``k``."""

    name = "self-consistency"
    options: ClassVar[Mapping[str, Option]] = {"k": Option(5, least=1, most=25)}

    def scripts(self) -> Mapping[str, Script]:
        """One engineer."""
        return {"engineer": engineer}

    def inception(self, role: str) -> str:
        """The engineer's."""
        return INCEPTION

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """The answer given most often; the end when most samples have nothing to propose."""
        parts, schema = self.situation(attempt), proposal_schema(self.card)
        replies = [
            self.say("engineer", parts, REQUEST, schema, facts={**parts, "sample": sample})
            for sample in range(self.setting["k"])
        ]
        votes = Counter(_answer(reply) for reply in replies)
        winner = next(reply for reply in replies if votes[_answer(reply)] == max(votes.values()))
        if winner.get("done") and not winner["changes"]:
            self.stop_reason = "most samples say that nothing is worth a run any more"
            return []
        return [Draft(winner.get("changes", {}), winner.get("lever", ""), winner.get("reasoning", ""))]


def _answer(reply: Mapping[str, Any]) -> str:
    """What counts as the same answer."""
    return json.dumps(reply.get("changes", {}), sort_keys=True)


def engineer(facts: Facts) -> dict[str, Any]:
    """The best candidate; every other sample on average passes over it, every fourth over two, and so on."""
    key = f"{facts['turn']['iteration']}/{facts['turn']['attempt']}/{facts['sample']}"
    draw = int(hashlib.sha256(key.encode()).hexdigest()[:4], 16)
    passed = next(place for place in range(17) if place == 16 or draw >> place & 1)
    few = list(itertools.islice(alone(facts), passed + 1))
    return proposal_of(few[-1] if few else None)
