"""How a scripted player chooses: candidates from the levers, without what is known, with what memory demands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.memory import expected_bytes

FULL = 1.0
"""Expected memory over capacity beyond which a player does not run."""

LOSS = -0.005
"""A run that gained no more than this has lost."""

_SHORTAGE = re.compile(r"Tried to allocate ([0-9.]+) GiB")

Candidate = dict[str, Any]
"""``changes`` against the incumbent, the ``lever`` (a parameter), ``saves``, ``why``."""


def candidates(card: Facts, incumbent: Facts, ranked: Sequence[Facts], known: Sequence[Facts]) -> Iterator[Candidate]:
    """What to run next, best first: the levers as ranked, then any neighbour, then pairs of levers; what has lost
    before, on another incumbent, comes after all that has not.

    Args:
        card: the task card.
        incumbent: ``values`` and the names of ``inert`` parameters.
        ranked: levers as `thumb.levers` gives them.
        known: runs and refusals. A run has its ``values``, and what was ``asked`` with the ``lever`` and the ``gain``;
            a refusal the ``changes`` against this incumbent; ``forbidden`` are pairs of parameter and value.
    """
    values = incumbent["values"]
    tried = [row["values"] for row in known if "values" in row]
    seen = [row["changes"] for row in known if "changes" in row]
    forbidden = [tuple(pair) for row in known for pair in row.get("forbidden", [])]
    runs = [row for row in known if "asked" in row]
    lost = [(row["lever"], row["asked"].get(row["lever"])) for row in runs if row["gain"] <= LOSS]
    inert = set(incumbent.get("inert", [])) - {"ep_overlap"}  # a pipeline without it takes it with virtual stages
    single = [lever for lever in ranked if lever["saves"] > 0 and lever["moves"][0][0] not in inert]
    later = []
    for lever in (*single, *thumb.neighbours(values, card, inert), *thumb.pairs(single)):
        changes = thumb.moved(lever["moves"], values, card)
        if not changes or changes in seen or any(item in forbidden for item in changes.items()):
            continue
        if {**values, **changes} in tried:
            continue
        seen.append(changes)
        found = {"changes": changes, "lever": lever["moves"][0][0], "saves": lever["saves"], "why": lever["why"]}
        if (found["lever"], changes.get(found["lever"])) in lost:
            later.append(found)
        else:
            yield found
    yield from later


def alone(facts: Facts, shares: Mapping[str, float] | None = None) -> Iterator[Candidate]:
    """What a player without colleagues would run next, best first: after out of memory the same with more room, else
    the candidates, with the recomputation they need.

    Args:
        facts: as `Desk.situation` gives them, with the task card.
        shares: of the step by part; the incumbent's own if None.
    """
    card, incumbent, last = facts["card"], facts["incumbent"], facts["last_run"]
    recipe, values = card["recipe"], incumbent["values"]
    runs = [{**run, "values": {**recipe, **run["changed_from_recipe"]}} for run in facts["history"]]
    known = [*runs, *facts["refused"]]
    if last.get("status") == "oom" and last.get("asked"):
        more = {**last["asked"], **more_room(last["values"], card, last.get("message", ""))}
        more = {**more, **thumb.completed(more, values, card)}
        if all({**values, **more} != row.get("values") and more != row.get("changes") for row in known):
            why = f"{last['lever']} once more, with room for what ran out of memory"
            yield {"changes": more, "lever": last["lever"], "saves": 1.0, "why": why}
    ranked = thumb.levers(values, incumbent.get("shares", {}) if shares is None else shares, card)
    for candidate in candidates(card, incumbent, ranked, known):
        wider = with_room(candidate["changes"], incumbent, card)
        if wider is None:
            continue
        wider = {**wider, **thumb.completed(wider, values, card)}
        if all({**values, **wider} != row.get("values") and wider != row.get("changes") for row in known):
            yield {**candidate, "changes": wider}


def proposal_of(candidate: Candidate | None) -> dict[str, Any]:
    """The reply that proposes ``candidate``; without one, that nothing is left."""
    if candidate is None:
        return {"reasoning": "every lever has been tried", "lever": "", "changes": {}, "done": True}
    return {"reasoning": candidate["why"], "lever": candidate["lever"], "changes": candidate["changes"]}


def memory_ratio(values: Facts, incumbent: Facts, card: Facts) -> float:
    """Expected peak over capacity: the formulas' ratio to the incumbent times what the incumbent measured."""
    expected = expected_bytes(values, card)
    share = incumbent.get("memory_share")
    if share is None:
        return expected / float(card["cluster"]["memory_bytes"])
    return float(share) * expected / expected_bytes(incumbent["values"], card)


def fits(values: Facts, incumbent: Facts, card: Facts) -> bool:
    """Whether ``values`` should fit in memory: what takes no more than the incumbent does."""
    return memory_ratio(values, incumbent, card) <= max(FULL, incumbent.get("memory_share") or 0.0)


def with_room(changes: Mapping[str, Any], incumbent: Facts, card: Facts) -> dict[str, Any] | None:
    """``changes`` with the narrowest recomputation that should fit; None where no level does."""
    for level in ("", *_levels_above({**incumbent["values"], **changes}, card)):
        wider = {**changes, **({"recompute": level} if level else {})}
        if fits({**incumbent["values"], **wider}, incumbent, card):
            return wider
    return None


def more_room(values: Facts, card: Facts, message: str) -> dict[str, Any]:
    """What to change after running out of memory: the narrowest recomputation that frees what was short, as the
    message tells, else all of it; without any left a deeper pipeline or a smaller micro-batch.
    """
    found = _SHORTAGE.search(message)
    short = float(found.group(1)) * 2**30 if found else 0.0
    levels, before = _levels_above(values, card), expected_bytes(values, card)
    for level in levels:
        if before - expected_bytes({**values, "recompute": level}, card) >= max(short, 1.0):
            return {"recompute": level}
    if levels:
        return {"recompute": levels[-1]}
    moves = ((("mbs", "down"),), (("pp", "up"),), (("tp", "up"),))
    return next((changes for move in moves if (changes := thumb.moved(move, values, card))), {})


def _levels_above(values: Facts, card: Facts) -> list[str]:
    """Levels of recomputation beyond the one in ``values``, the narrowest first."""
    choices = card["parameters"].get("recompute", {}).get("choices", [])
    level = values.get("recompute")
    return list(choices[choices.index(level) + 1 :] if level in choices else choices[-1:])
