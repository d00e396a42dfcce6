"""From a lesson's move to an edit of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import Estimate
from attune_lab.enumeration import LEVERS
from attune_lab.lessons.catalog import Step
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace


WITH_A_LAYOUT = (*LAYOUT, *LEVERS)
"""What may move together as one lever: the sizes of a layout with the micro-batch, recomputation, dispatcher and
overlaps that it needs. A layout may be worth its communication only where that is hidden, and fit only with them."""


TOGETHER = 0.03
"""Settings that the cost model expects to save no more than this each, a few noise bands, may move together."""


def resolve(move: Mapping[str, Step], recipe: Recipe, space: SearchSpace) -> dict[str, Value] | None:
    """The edits that ``move`` means for ``recipe``; None where it changes nothing or leaves the space."""
    edits: dict[str, Value] = {}
    for key, step in move.items():
        if key not in space.parameters:
            return None
        value = _target(step, space.value(recipe, key), space.parameters[key].choices)
        if value not in space.parameters[key].choices:
            return None
        if value != space.value(recipe, key):
            edits[key] = value
    return edits or None


def _target(step: Step, value: Value, choices: Sequence[Value]) -> Value:
    """The new value; one outside ``choices`` where the verb does not apply."""
    if step in ("on", "off"):
        return step == "on"
    if step in ("halve", "double"):
        size = int(value) if isinstance(value, int) else 1
        return size * 2 if step == "double" else size // 2
    if step in ("up", "down"):
        place = choices.index(value) + (1 if step == "up" else -1) if value in choices else -1
        return choices[place] if 0 <= place < len(choices) else _NOWHERE
    return step


def is_small(before: Estimate, after: Estimate) -> bool:
    """Whether the cost model expects so little of a move that noise could hide it."""
    return before.step_time_s <= after.step_time_s * (1.0 + TOGETHER)


_NOWHERE = "no such choice"


def touches_layout(edits: Mapping[str, Any]) -> bool:
    """Whether any of ``edits`` is a parallel size."""
    return any(key in LAYOUT for key in edits)
