"""The seats of the team: who they are, what they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from baselines.agents.cards import Facts
from baselines.agents.memory import IN_WORDS
from baselines.agents.pool import Role
from baselines.agents.replies import LEVERS, TEXT, changes_schema, object_schema, proposal_schema, review_schema

ABLATIONS = ("none", "no-pool", "no-failure-analyst", "no-inception", "merged")

_CONDUCT = (
    "Keep to your role: do not do another role's work, and do not give instructions to other roles. Think step by step "
    "in `reasoning`, then decide. Answer once, through the tool, in its form."
)


def _inception(who: str) -> str:
    return f"{who} {_CONDUCT}"


def _strategist(card: Facts) -> Role:
    return Role(
        name="strategist",
        inception=_inception(
            "You are the strategist of a team that tunes a training recipe. You propose the next configuration to run: "
            "one or two levers against the incumbent. You never run, check or diagnose anything yourself. When nothing "
            "is worth a run any more, set `done`."
        ),
        awaits=frozenset({"diagnosis", "failure_analysis", "objection", "done"}),
        needs=frozenset({"incumbent"}),
        reads={
            "incumbent": 1, "diagnosis": 1, "failure_analysis": 1, "objection": 3, "result": 2, "failure": 2, "done": 1,
        },
        request="Propose the next configuration: changes against the incumbent, one or two levers.",
        schema=proposal_schema(card),
    )  # fmt: skip


def _checker(card: Facts) -> Role:
    return Role(
        name="checker",
        inception=_inception(
            "You are the resource checker. You judge one proposal before it is paid for: does it start, does it fit in "
            "memory, does it use the hardware well? You may suggest an edit; you never propose a strategy of your own. "
            f"{IN_WORDS}"
        ),
        awaits=frozenset({"proposal"}),
        reads={"incumbent": 1, "proposal": 1},
        request="Judge the newest proposal: `accept`, or `revise` with the violations and an edit that mends them.",
        schema=review_schema(card),
    )  # fmt: skip


def _analyst() -> Role:
    return Role(
        name="bottleneck_analyst",
        inception=_inception(
            "You are the bottleneck analyst. You say what the incumbent's step is spent on, and which levers would "
            "shorten it, best first. You never choose the next configuration."
        ),
        awaits=frozenset({"result"}),
        needs=frozenset({"incumbent"}),
        reads={"incumbent": 1, "result": 1},
        request="Name the dominant part of the incumbent's step, the evidence, and the levers in order.",
        schema=object_schema(dominant_term=TEXT, evidence=TEXT, levers_ranked=LEVERS),
    )


def _failure_analyst(card: Facts) -> Role:
    return Role(
        name="failure_analyst",
        inception=_inception(
            "You are the failure analyst. You say why the last run failed, which limit it broke, what must not be "
            "tried again, and how the same idea could still be run. You never choose the next configuration."
        ),
        awaits=frozenset({"failure"}),
        reads={"incumbent": 1, "failure": 1, "proposal": 1},
        request="Explain the failure. `forbidden` lists parameter and value pairs to avoid from now on.",
        schema=object_schema(
            cause=TEXT,
            violated_limit=TEXT,
            forbidden={"type": "array", "maxItems": 20, "items": {"type": "array", "minItems": 2, "maxItems": 2}},
            fallback_edit=changes_schema(card),
        ),
    )


def team(card: Facts, ablation: str) -> Sequence[Role]:
    """The seats, in the order of turns."""
    strategist, checker, analyst, failures = _strategist(card), _checker(card), _analyst(), _failure_analyst(card)
    if ablation == "merged":
        everything = frozenset({"result", "failure", "objection", "done"})
        who = "You tune a training recipe alone: diagnose, explain failures, check memory, and propose the next run."
        return (replace(strategist, name="engineer", inception=_inception(who), awaits=everything),)
    if ablation == "no-failure-analyst":
        strategist = replace(strategist, awaits=strategist.awaits | {"failure"})
        return (checker, analyst, strategist)
    seats = (checker, analyst, failures, strategist)
    if ablation == "no-inception":
        return tuple(replace(seat, inception="") for seat in seats)
    return seats


def brief_of(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What of an agent's message outlives its window."""
    kept = {"objection": ("changes", "violations"), "failure_analysis": ("forbidden",)}.get(kind, ())
    return {key: body[key] for key in kept if body.get(key)}
