"""Scripted players that several arrangements seat: they answer from what they see in the pool and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from attune_lab.parameters import LAYOUT
from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.playing import FULL, candidates, fits, memory_ratio, more_room, proposal_of, with_room

SLOWER = 1.02
"""Expected step time over the incumbent's beyond which a checker with the cost model at hand objects."""

BROKEN = frozenset({"crash", "hang", "diverged"})


def newest(facts: Facts, *kinds: str) -> dict[str, Any]:
    """The newest message of some kinds, or an empty one."""
    return next((message for message in reversed(facts["messages"]) if message["kind"] in kinds), {})


def incumbent_of(facts: Facts) -> dict[str, Any]:
    """The incumbent as last published; the recipe where none is to be seen."""
    return newest(facts, "incumbent") or {"values": facts["card"]["recipe"], "inert": []}


def strategy(facts: Facts) -> dict[str, Any]:
    """A proposal: the last draft mended where a critic says how, else the best lever not tried yet."""
    card, incumbent, known = facts["card"], incumbent_of(facts), _known(facts)
    mended = _mended(facts, incumbent, known)
    if mended is not None:
        return mended
    ranked = newest(facts, "diagnosis").get("levers_ranked")
    if ranked is None:
        ranked = thumb.levers(incumbent["values"], incumbent.get("shares", {}), card)
    chosen = next(itertools.islice(candidates(card, incumbent, ranked, known), _unseen(facts), None), None)
    return proposal_of(chosen)


def _known(facts: Facts) -> list[dict[str, Any]]:
    """Runs, objections to changes of the present incumbent, and what is forbidden."""
    recipe, rows = facts["card"]["recipe"], []
    messages: Sequence[Facts] = facts["messages"]
    since = max((place for place, message in enumerate(messages) if message["kind"] == "incumbent"), default=-1)
    for place, message in enumerate(messages):
        row = dict(message)
        if "changed_from_recipe" in message:
            row["values"] = {**recipe, **message["changed_from_recipe"]}
        if place < since:
            row.pop("changes", None)
        rows.append(row)
    return rows


def _mended(facts: Facts, incumbent: Facts, known: Sequence[Facts]) -> dict[str, Any] | None:
    """The last draft with the edit that its critic suggests; None where there is none, or it is known."""
    critic = newest(facts, "objection", "failure_analysis", "diagnosis")
    edit = critic.get("suggested_edit") or critic.get("fallback_edit")
    if not edit:
        return None
    changes = {**critic.get("changes", {}), **edit}
    changes = {**changes, **thumb.completed(changes, incumbent["values"], facts["card"])}
    seen = any(row.get("changes") == changes for row in known)
    if seen or any({**incumbent["values"], **changes} == row.get("values") for row in known):
        return None
    lever = critic.get("lever", "")
    by = "checker" if critic["kind"] == "objection" else "failure analysis"
    return {"reasoning": f"{lever} once more, with what the {by} suggests", "lever": lever, "changes": changes}


def _unseen(facts: Facts) -> int:
    """How many drafts of this campaign are out of sight: so many candidates are passed over."""
    turn: Mapping[str, int] = facts["turn"]
    kinds = [message["kind"] for message in facts["messages"]]
    runs = sum(kinds.count(kind) for kind in ("result", "failure", "abandoned"))
    return max(turn["runs"] - max(runs, 1), 0) + max(turn["attempt"] - kinds.count("objection") - runs, 0)


def review(facts: Facts) -> dict[str, Any]:
    """Objects to what cannot start and to what should not fit; with the cost model at hand, to what is slower."""
    card, incumbent, proposal = facts["card"], incumbent_of(facts), newest(facts, "proposal")
    violations = list(proposal.get("checks", []))
    edit: dict[str, Any] = {}
    values = proposal.get("values", incumbent["values"])
    ratio = proposal.get("expected_memory_share") or memory_ratio(values, incumbent, card)
    if not violations and (ratio > FULL if "expected_memory_share" in proposal else not fits(values, incumbent, card)):
        violations.append(f"it should need {ratio:.2f} times the memory there is")
        wider = with_room(proposal["changes"], incumbent, card) or {}
        edit = {key: value for key, value in wider.items() if proposal["changes"].get(key) != value}
    if proposal.get("expected_step_time_ratio", 0.0) > SLOWER:
        violations.append("the cost model expects it to be slower")
    return {
        "reasoning": f"by the formulas it takes {ratio:.2f} of the memory",
        "verdict": "revise" if violations else "accept",
        "violations": violations[:20],
        "suggested_edit": edit,
    }


def dominant(shares: Mapping[str, float]) -> str:
    """The largest part of the step that is not compute; ``compute`` where there is no breakdown."""
    return max((part for part in shares if part != "compute"), key=lambda part: shares[part], default="compute")


def diagnosis(facts: Facts) -> dict[str, Any]:
    """Ranks the rules of thumb by the share of the incumbent's step that they touch."""
    incumbent = incumbent_of(facts)
    shares = incumbent.get("shares", {})
    part = dominant(shares)
    return {
        "reasoning": "what is neither compute nor hidden behind it can be saved",
        "dominant_term": part,
        "evidence": f"{shares.get(part, 0.0):.1%} of the step" if shares else "the run told no breakdown",
        "levers_ranked": thumb.levers(incumbent["values"], shares, facts["card"])[:40],
    }


def failure_analysis(facts: Facts) -> dict[str, Any]:
    """Out of memory: the same with recomputation. What crashes, hangs or diverges: its switches are forbidden."""
    failure = newest(facts, "failure")
    status, message = failure.get("status", ""), failure.get("message", "")
    asked = failure.get("asked", {})
    fallback = more_room(failure["values"], facts["card"], message) if status == "oom" and asked else {}
    forbidden = [[key, value] for key, value in asked.items() if status in BROKEN and key not in LAYOUT]
    limits = {"oom": "memory", "invalid": "rules of the stack", "timeout": "time"}
    return {
        "reasoning": f"the run ended as {status}",
        "cause": message[:300] or status,
        "violated_limit": limits.get(status, "correctness of the run"),
        "forbidden": forbidden[:20],
        "fallback_edit": fallback,
    }
