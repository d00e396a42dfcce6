"""Mutation of a recipe by a language model, as evolutionary coding agents do it, and the rules that play it offline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from baselines.agents import thumb
from baselines.agents.cards import Facts
from baselines.agents.playing import alone, more_room, with_room

PATCHES: Mapping[str, float] = {"diff": 0.6, "full": 0.3, "cross": 0.1}
"""Kinds of mutation and how often each is asked for. **Source:** ShinkaEvolve, SakanaAI/ShinkaEvolve@9912af1."""

WANTED: Mapping[str, str] = {
    "diff": "Change one thing about the parent.",
    "full": "Change two or more things about the parent that help each other.",
    "cross": "Take over from the inspirations what made them good, where it differs from the parent.",
}

INCEPTION = (
    "You mutate recipes in an evolutionary search. You are shown a parent that ran, inspirations from the archive, and "
    "the last failure. Propose a child of the parent, by changes against it, that is likely to be faster and to fit in "
    "memory. Never propose what has been run."
)

MOST = 40
"""Candidates among which the player chooses."""

_GEOMETRIC = 0.5
"""Each next candidate of the ranking is taken so many times as often as the one before."""


def patch_of(draw: float) -> str:
    """The kind of mutation that a uniform ``draw`` on [0, 1) stands for."""
    bounds = zip(PATCHES, itertools.accumulate(PATCHES.values()), strict=True)
    return next((kind for kind, bound in bounds if draw < bound), "diff")


def mutate(facts: Facts) -> dict[str, Any]:
    """The script of the mutating role: a reply of `baselines.agents.replies.proposal_schema`.

    Args:
        facts: as `Desk.situation` gives them, where the incumbent is the parent, with the task card; ``inspirations``
            (runs in full), ``error`` (the last failure or nothing), ``patch``, and a uniform ``draw`` that stands for
            a model's own randomness.
    """
    card, parent = facts["card"], facts["incumbent"]
    if changes := _repaired(facts["error"], parent, card):
        return _reply("the last failure, with more recomputation", "recompute", changes)
    if facts["patch"] == "cross" and (changes := _crossed(facts)):
        return _reply("what an inspiration has and the parent has not", next(iter(changes)), changes)
    found = list(itertools.islice(alone({**facts, "last_run": {}}), MOST))
    if not found:
        return _reply("nothing fits that has not been run", "", {})
    place = min(int(math.log(1.0 - facts["draw"]) / math.log(_GEOMETRIC)), len(found) - 1)
    first, others = found[place], found[:place] + found[place + 1 :]
    both = _joined(first, others, parent, card) if facts["patch"] == "full" else {}
    return _reply(first["why"], first["lever"], both or first["changes"])


def _repaired(error: Facts, parent: Facts, card: Facts) -> dict[str, Any]:
    """The recipe that ran out of memory last, as changes of the parent, with more room; empty for other failures."""
    if error.get("status") != "oom" or "values" not in error:
        return {}
    wanted = {**error["values"], **more_room(error["values"], card, error.get("message", ""))}
    return {key: value for key, value in wanted.items() if value != parent["values"].get(key)}


def _crossed(facts: Facts) -> dict[str, Any]:
    """Half of what the first inspiration that differs has and the parent has not, where that divides and fits."""
    card, parent = facts["card"], facts["incumbent"]
    for other in facts["inspirations"]:
        differing = sorted(key for key, value in other["values"].items() if value != parent["values"].get(key))
        start = int(facts["draw"] * len(differing))
        taken = (differing[start:] + differing[:start])[: math.ceil(len(differing) / 2)]
        changes = thumb.completed({key: other["values"][key] for key in taken}, parent["values"], card)
        if changes and thumb.divides({**parent["values"], **changes}, card):
            return with_room(changes, parent, card) or {}
    return {}


def _joined(first: Facts, others: Sequence[Facts], parent: Facts, card: Facts) -> dict[str, Any]:
    """The changes of ``first`` with those of the next candidate that goes with it and leaves room; empty without."""
    for other in others:
        both = {**other["changes"], **first["changes"]}
        apart = not other["changes"].keys() & first["changes"].keys()
        if apart and thumb.divides({**parent["values"], **both}, card):
            return with_room(both, parent, card) or {}
    return {}


def _reply(why: str, lever: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {"reasoning": why, "lever": lever, "changes": dict(changes)}
