"""From a lesson's move to an edit of a recipe, and the layouts worth a jump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.agent.lessons import Step
from attune_lab.contracts import CostModel, Estimate
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

SHORTLIST = 48
"""Layouts whose levels of recomputation are looked at, best predicted first."""


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


_NOWHERE = "no such choice"


def touches_layout(edits: Mapping[str, Any]) -> bool:
    """Whether any of ``edits`` is a parallel size."""
    return any(key in LAYOUT for key in edits)


@dataclass(frozen=True)
class Jump:
    """A layout with the recomputation it needs, and what the cost model expects of it."""

    layout: tuple[int, ...]
    recipe: Recipe
    estimate: Estimate


def best_layouts(recipe: Recipe, space: SearchSpace, cost_model: CostModel, *, memory_limit: float) -> list[Jump]:
    """The predicted fastest layouts for ``recipe``'s other settings, each with the recomputation it needs to fit.

    Recomputation only ever costs time, so layouts are first ordered by their time without it; levels are then
    tried on the best of them alone.

    Args:
        memory_limit: largest predicted peak that is accepted, as a fraction of capacity.

    Returns:
        One jump a layout, fastest first; layouts that fit at no level are left out.
    """
    levels = space.parameters["recompute"].choices
    lean = []
    for layout in space.enumerate_layouts():
        edits: dict[str, Value] = {key: size for key, size in layout.items() if key in space.parameters}
        lean.append((tuple(layout.values()), space.apply(recipe, {**edits, "recompute": levels[0]})))
    shortlist = sorted(_launchable(lean, cost_model), key=_step_time)[:SHORTLIST]
    deeper = [(j.layout, space.apply(j.recipe, {"recompute": level})) for j in shortlist for level in levels[1:]]
    fastest: dict[tuple[int, ...], Jump] = {}
    for jump in shortlist + _launchable(deeper, cost_model):
        if jump.estimate.peak_memory_bytes <= memory_limit * jump.estimate.memory_capacity_bytes:
            fastest[jump.layout] = min(fastest.get(jump.layout, jump), jump, key=_step_time)
    return sorted(fastest.values(), key=_step_time)


def _launchable(drafts: Sequence[tuple[tuple[int, ...], Recipe]], cost_model: CostModel) -> list[Jump]:
    estimates = cost_model.estimate([recipe for _, recipe in drafts])
    priced = zip(drafts, estimates, strict=True)
    return [Jump(layout, recipe, estimate) for (layout, recipe), estimate in priced if not estimate.problems]


def _step_time(jump: Jump) -> float:
    return jump.estimate.step_time_s
