"""Replies that propose changes, and what of them the search space takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attune_lab.recipe import Value
from attune_lab.space import SearchSpace
from baselines.agents.cards import Facts

TEXT = {"type": "string", "maxLength": 4000}

LEVERS: Mapping[str, Any] = {
    "type": "array",
    "maxItems": 40,
    "description": "what to change, best first; a step is up, down, on or =choice",
    "items": {
        "type": "object",
        "properties": {
            "moves": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": TEXT},
            },
            "saves": {"type": "number", "minimum": 0, "maximum": 1, "description": "fraction of the step"},
            "why": TEXT,
        },
        "required": ["moves", "saves", "why"],
        "additionalProperties": False,
    },
}
"""The schema of a ranking of levers."""


def object_schema(**properties: Any) -> dict[str, Any]:
    """A schema of an object with all of ``properties``, the reasoning before everything else."""
    known = {"reasoning": TEXT, **properties}
    return {"type": "object", "properties": known, "required": list(known), "additionalProperties": False}


def changes_schema(card: Facts) -> dict[str, Any]:
    """The schema of changes: parameter -> new value. Others than these are dropped, not refused."""
    return {
        "type": "object",
        "description": "parameter -> new value, against the incumbent; leave out what stays",
        "properties": {
            key: {"description": f"{row['meaning']}; one of {row['choices']}"}
            for key, row in card["parameters"].items()
        },
    }


def review_schema(card: Facts) -> dict[str, Any]:
    """The schema of a verdict on a proposal."""
    return object_schema(
        verdict={"type": "string", "enum": ["accept", "revise"]},
        violations={"type": "array", "items": TEXT, "maxItems": 20},
        suggested_edit=changes_schema(card),
    )


def proposal_schema(card: Facts) -> dict[str, Any]:
    """The schema of a proposal: the reasoning before the decision."""
    return {
        "type": "object",
        "properties": {
            "reasoning": TEXT,
            "lever": {**TEXT, "description": "the parameter the reasoning is about; empty with nothing to propose"},
            "changes": changes_schema(card),
            "done": {"type": "boolean", "description": "true: nothing is worth a run any more"},
        },
        "required": ["reasoning", "lever", "changes"],
        "additionalProperties": False,
    }


def accepted(changes: Mapping[str, Any], space: SearchSpace) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The changes the space knows, and the names of those dropped: no such parameter, or no such choice."""
    kept: dict[str, Value] = {}
    for key, value in changes.items():
        parameter = space.parameters.get(key)
        found = [] if parameter is None else [choice for choice in parameter.choices if _same(choice, value)]
        if found:
            kept[key] = found[0]
    return kept, tuple(sorted(changes.keys() - kept.keys()))


def _same(choice: Value, value: Any) -> bool:
    """Equality as JSON has it: true is not 1, but 2.0 is 2."""
    return bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)
