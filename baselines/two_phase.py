"""Two phases, after CUCo: first recipes that run at all, then speed.

The published system writes fused communication kernels: a fast path in which an agent and a judge seek any correct
kernel, then a slow path in which islands evolve it for 10 to 20 generations under a cascaded evaluation.
**Source:** CUCo, arXiv 2603.02376 (abstract); UT-InfraAI/cuco@9ac5a53.

Faithful: the order of the phases, a judge in the first that sees drafts before they run, islands and cascade in the
second. Reconstructed: "correct" is a recipe that runs. The recipe as it came in runs already, so the first phase seeks
other kinds of layout with memory to spare, one seed for each island, and it is given up after a few
runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attune_lab.llm.scripted import Script
from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.desk import MAX_REASKS, Draft
from baselines.agents.evolving import EvolvingDesk
from baselines.agents.playing import memory_ratio
from baselines.agents.replies import TEXT, proposal_schema

MOST_DRAFTS = 6
"""Runs after which the second phase begins in any case."""

SPARE = 0.85
"""A conservative draft is expected to fill no more of the memory than this."""

KIND = ("tp", "pp", "ep")
"""What makes another layout."""

VERDICT = {
    "type": "object",
    "properties": {"reasoning": TEXT, "verdict": {"type": "string", "enum": ["accept", "reject"]}},
    "required": ["reasoning", "verdict"],
    "additionalProperties": False,
}

INCEPTIONS: Mapping[str, str] = {
    "builder": (
        "You are the builder. Propose a recipe with another layout than those that ran, by changes against the recipe "
        "shown. It only has to run: leave memory to spare, and change nothing that is not needed. Speed comes later."
    ),
    "judge": (
        "You are the judge. You are shown a draft, what the stack's own checks say of it, and what failed before. "
        "Accept it if it will start and fit in memory, else reject it and say why."
    ),
}


class TwoPhase(EvolvingDesk):
    """A seed for each island first, then evolution. Options are `EvolvingDesk`'s.

    Raises:
        UserError: an unknown option or value.
    """

    name = "two-phase"

    @property
    def seeding(self) -> bool:
        """Whether the first phase is still on: until each island has a seed beside the recipe as it came in."""
        seeds = sum(trial.recipe.digest != self.task.baseline.digest for trial in self.history.feasible)
        return seeds < len(self.islands.populations) and self.iteration < MOST_DRAFTS

    def scripts(self) -> Mapping[str, Script]:
        """Rules of thumb."""
        return {**super().scripts(), "builder": build, "judge": judge}

    def inception(self, role: str) -> str:
        """Who a role is."""
        return INCEPTIONS.get(role) or super().inception(role)

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """A draft that the judge accepts, or the builder's last one; in the second phase a child."""
        if not self.seeding:
            return super().deliberate(attempt)
        self._parent = self.task.baseline
        parts = self.situation(attempt)
        body = self.say("builder", parts, "Propose one recipe that will run.", proposal_schema(self.card))
        if not body:
            return []
        draft = Draft(body["changes"], body["lever"], body["reasoning"])
        if self._accepted(draft, parts):
            return [draft]
        return [replace(draft, vetoed=True)] if attempt == MAX_REASKS - 1 else []

    def _accepted(self, draft: Draft, parts: Facts) -> bool:
        """What the judge says; a draft it turned down is shown to the builder as refused."""
        checked = self.check(draft)
        shown = {**parts, "draft": dict(checked.edits), "checks": list(checked.faults)}
        verdict = self.say("judge", shown, "Will this draft start and fit?", VERDICT)
        if verdict.get("verdict") == "accept":
            return True
        self.refuse(replace(checked, faults=(*checked.faults, f"the judge: {verdict.get('reasoning', 'no reply')}")))
        return False


def build(facts: Facts) -> dict[str, Any]:
    """The script of the builder: the nearest other layout that the formulas expect to leave memory to spare."""
    card, recipe = facts["card"], facts["incumbent"]
    values, parameters = recipe["values"], card["parameters"]
    refused = [row["changes"] for row in facts["refused"]]
    seen = [_sizes({**card["recipe"], **run["changed_from_recipe"]}) for run in facts["history"]]
    axes = [parameters.get(key, {}).get("choices", [1]) for key in KIND]
    levels = parameters["recompute"]["choices"]
    weakest = levels.index(values["recompute"]) if values["recompute"] in levels else 0
    found = []
    for sizes in itertools.product(*axes):
        moved = {key: size for key, size in zip(KIND, sizes, strict=True) if size != values.get(key, 1)}
        changes = thumb.completed(moved, values, card)
        if sizes in seen or not moved or not thumb.divides({**values, **changes}, card):
            continue
        far = sum(abs(math.log2(size / (values.get(key) or 1))) for key, size in moved.items())
        for place, level in enumerate(levels[weakest:]):
            safe = {**changes, "recompute": level} if place else changes
            if safe not in refused and memory_ratio({**values, **safe}, recipe, card) <= SPARE:
                found.append((far, place, safe))
                break
    if not found:
        return {"reasoning": "no other layout leaves memory to spare", "lever": "", "changes": {}}
    _, _, best = min(found, key=lambda row: row[:2])
    return {"reasoning": "the nearest other layout with memory to spare", "lever": next(iter(best)), "changes": best}


def judge(facts: Facts) -> dict[str, Any]:
    """The script of the judge: the stack's checks, and the memory by the formulas."""
    recipe = facts["incumbent"]
    ratio = memory_ratio({**recipe["values"], **facts["draft"]}, recipe, facts["card"])
    if facts["checks"]:
        return {"reasoning": facts["checks"][0], "verdict": "reject"}
    verdict = "accept" if ratio <= 1.0 else "reject"
    return {"reasoning": f"expected to fill {ratio:.0%} of the memory", "verdict": verdict}


def _sizes(values: Facts) -> tuple[Any, ...]:
    return tuple(values.get(key, 1) for key in KIND)
