"""ASAP (re-implementation from the abstract): coordinator, analyzer and proposer with a sharding memory.

**Source:** abstract and summaries of ASAP (arXiv 2511.03844, ML for Systems at NeurIPS 2025); its code is not released.

Faithful: three roles; a profile is classed by roofline thinking as bound by compute, memory or communication; a memory
of shardings and what came of them is searched for similar cases; three candidates per experiment. Reconstructed: the
schemas and the prompts; the memory holds the runs of this campaign alone and gives the five nearest to the incumbent by
its parallel sizes; the candidates are any levers of the space, not shardings alone; the coordinator puts them in order
and may drop some. All that it keeps are run and paid for, as if in parallel: each is a change of the incumbent at the
time of asking. With ``use_analytic_estimate=true`` only the one that the cost model expects to be fastest is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attune_lab.llm.scripted import Script
from attune_lab.parameters import LAYOUT
from baselines.agents.cards import Facts
from baselines.agents.desk import Desk, Draft
from baselines.agents.playing import alone, proposal_of
from baselines.agents.replies import TEXT, object_schema, proposal_schema
from baselines.common.history import Trial

CANDIDATES = 3
RECALLED = 5
"""Runs that the memory gives."""

BOUNDS: Mapping[str, tuple[str, ...]] = {
    "communication": ("exposed_tp", "exposed_ep", "exposed_cp", "exposed_dp", "exposed_pp"),
    "memory": ("bubble", "optimizer"),
    "compute": ("compute", "host"),
}
"""Parts of the step by what bounds them; what memory forbids costs recomputation and stages."""

CROWDED = 0.92
"""Share of memory from which a scripted analyzer calls a run bound by memory."""

WEIGHT = 3.0
"""How much more a scripted proposer makes of the parts that the class names."""

INCEPTIONS: Mapping[str, str] = {
    "analyzer": "You are the analyzer. From a profile you say what bounds the step: compute, memory or communication, "
    "as on a roofline, with the evidence. You propose nothing.",
    "proposer": "You are the proposer. For the bound that the analyzer found, and with what the sharding memory "
    "recalls, you propose three different candidates.",
    "coordinator": "You are the coordinator. You decide which of the proposer's candidates are run, and in which "
    "order. You propose nothing yourself.",
}


class Asap(Desk):
    """Coordinator, analyzer, proposer; three candidates a turn."""

    name = "asap"

    def scripts(self) -> Mapping[str, Script]:
        """By role."""
        return {"analyzer": analyzer, "proposer": proposer, "coordinator": coordinator}

    def inception(self, role: str) -> str:
        """By role."""
        return INCEPTIONS[role]

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """Up to three drafts; the end when the proposer has none."""
        shown = self.situation(attempt)
        bound = {"type": "string", "enum": list(BOUNDS)}
        profile = {"incumbent": shown["incumbent"], "last_run": shown["last_run"]}
        found = self.say("analyzer", profile, "What bounds the step?", object_schema(bound=bound, evidence=TEXT))
        parts = {**shown, "analysis": dict(found), "memory": self._recalled()}
        request = f"Propose {CANDIDATES} different candidates: changes against the incumbent, one or two levers each."
        several = {"type": "array", "items": proposal_schema(self.card), "maxItems": CANDIDATES}
        reply = self.say("proposer", parts, request, object_schema(candidates=several))
        offered = [one for one in reply.get("candidates", []) if one["changes"]]
        if not offered:
            if "candidates" in reply:
                self.stop_reason = "the proposer has no candidates any more"
            return []
        order = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": CANDIDATES}
        parts = {"candidates": offered, "analysis": dict(found), "memory": parts["memory"]}
        chosen = self.say("coordinator", parts, "Which are run, in which order?", object_schema(order=order))
        places = [place for place in dict.fromkeys(chosen.get("order", [])) if place < len(offered)]
        drafts = [Draft(one["changes"], one["lever"], one["reasoning"]) for one in (offered[place] for place in places)]
        return self._fastest(drafts) if self.setting["use_analytic_estimate"] else drafts

    def _recalled(self) -> list[dict[str, Any]]:
        """The runs nearest to the incumbent by parallel sizes, the nearest first."""
        space, here = self.task.space, self.task.space.values(self.incumbent)

        def distance(trial: Trial) -> float:
            there = space.values(trial.recipe)
            return sum(abs(math.log2(_size(here, key) / _size(there, key))) for key in LAYOUT if key in here)

        known = [trial for trial in self.history if trial.reports]
        return [self.run_facts(trial, full=False) for trial in sorted(known, key=distance)[:RECALLED]]

    def _fastest(self, drafts: list[Draft]) -> list[Draft]:
        """The draft that the cost model expects to be fastest among those that fit; all where none does."""
        checked = [self.check(draft) for draft in drafts]
        estimates = self.task.cost_model.estimate([one.recipe for one in checked])
        priced = [
            (estimate.step_time_s, place)
            for place, (one, estimate) in enumerate(zip(checked, estimates, strict=True))
            if estimate.fits and not one.faults
        ]
        return [drafts[min(priced)[1]]] if priced else drafts


def _size(values: Mapping[str, Any], key: str) -> int:
    return int(values[key] or 1)


def analyzer(facts: Facts) -> dict[str, Any]:
    """Memory where it is nearly full, or ran out last; else what takes most of the step beyond plain compute."""
    incumbent = facts["incumbent"]
    shares: Mapping[str, float] = incumbent.get("shares", {})
    exposed = sum(shares.get(part, 0.0) for part in BOUNDS["communication"])
    crowded = incumbent.get("memory_share", 0.0) > CROWDED or facts["last_run"].get("status") == "oom"
    bound = "communication" if exposed > 0.15 else "memory" if crowded else "compute"
    evidence = f"{exposed:.1%} of the step waits for communication, {incumbent.get('memory_share', 0.0):.0%} of memory"
    return {
        "reasoning": "the largest part that is not plain compute bounds the step",
        "bound": bound,
        "evidence": evidence,
    }


def proposer(facts: Facts) -> dict[str, Any]:
    """The best candidates with different levers, the parts that the bound names weighing more."""
    shares, favoured = facts["incumbent"].get("shares", {}), BOUNDS[facts["analysis"]["bound"]]
    weighed = {part: share * (WEIGHT if part in favoured else 1) for part, share in shares.items()}
    found: dict[str, Any] = {}
    for candidate in alone(facts, weighed):
        found.setdefault(candidate["lever"], proposal_of(candidate))
        if len(found) == CANDIDATES:
            break
    return {"reasoning": "different levers, so that one experiment tells most", "candidates": list(found.values())}


def coordinator(facts: Facts) -> dict[str, Any]:
    """All of them, but after those whose lever has lost in a recalled run come last."""
    lost = {(row["lever"], row["asked"].get(row["lever"])) for row in facts["memory"] if row.get("gain", 0.0) < 0}
    doubtful = [(one["lever"], one["changes"].get(one["lever"])) in lost for one in facts["candidates"]]
    return {
        "reasoning": "what lost in a similar layout is run last",
        "order": sorted(range(len(doubtful)), key=lambda place: doubtful[place]),
    }
