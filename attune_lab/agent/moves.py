"""From a lesson's move to an edit of a recipe, and the layouts worth a jump."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.agent.lessons import Step
from attune_lab.contracts import CostModel, Estimate
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

LAYOUT_KEYS = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
"""Parameters that together make a layout: moving several of them at once is one move."""

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
    return any(key in LAYOUT_KEYS for key in edits)


@dataclass(frozen=True)
class Jump:
    """A layout with the recomputation it needs, and what the cost model expects of it."""

    recipe: Recipe
    estimate: Estimate


def best_layouts(
    recipe: Recipe, space: SearchSpace, cost_model: CostModel, *, facts: Mapping[str, Any], memory_limit: float
) -> list[Jump]:
    """The predicted fastest layouts for ``recipe``'s other settings, each with the recomputation it needs to fit.

    Recomputation only ever costs time, so layouts are first ordered by their time without it; levels are then
    tried on the best of them alone.

    Args:
        facts: effective settings of ``recipe``: ``world_size``, ``gbs``, ``num_experts``.
        memory_limit: largest predicted peak that is accepted, as a fraction of capacity.

    Returns:
        One jump a layout, fastest first; layouts that fit at no level are left out.
    """
    levels = space.parameters["recompute"].choices if "recompute" in space.parameters else ()
    edits = list(_legal_sizes(space, facts))
    lean = [{**edit, "recompute": levels[0]} if levels else edit for edit in edits]
    bare = _launchable([space.apply(recipe, edit) for edit in lean], cost_model)
    shortlist = sorted(bare, key=lambda jump: jump.estimate.step_time_s)[:SHORTLIST]
    deeper = [space.apply(jump.recipe, {"recompute": level}) for jump in shortlist for level in levels[1:]]
    by_layout: dict[tuple[Value, ...], Jump] = {}
    for jump in shortlist + _launchable(deeper, cost_model):
        if jump.estimate.peak_memory_bytes > memory_limit * jump.estimate.memory_capacity_bytes:
            continue
        layout = tuple(space.value(jump.recipe, key) for key in LAYOUT_KEYS if key in space.parameters)
        known = by_layout.get(layout)
        if known is None or jump.estimate.step_time_s < known.estimate.step_time_s:
            by_layout[layout] = jump
    return sorted(by_layout.values(), key=lambda jump: jump.estimate.step_time_s)


def _launchable(recipes: Sequence[Recipe], cost_model: CostModel) -> list[Jump]:
    estimates = cost_model.estimate(recipes)
    return [Jump(r, e) for r, e in zip(recipes, estimates, strict=True) if not e.problems]


def _legal_sizes(space: SearchSpace, facts: Mapping[str, Any]) -> Iterator[dict[str, Value]]:
    """Combinations of parallel sizes that divide GPUs, batch and experts; the cost model rules on the rest."""
    keys = [key for key in LAYOUT_KEYS if key in space.parameters]
    gpus, gbs, experts = int(facts["world_size"]), int(facts["gbs"]), int(facts.get("num_experts") or 0)
    for values in itertools.product(*(space.parameters[key].choices for key in keys)):
        given = {key: int(value) for key, value in zip(keys, values, strict=True) if value}
        size = {**dict.fromkeys(LAYOUT_KEYS, 1), "etp": given.get("tp", 1), **given}
        dense, expert = size["tp"] * size["pp"] * size["cp"], size["ep"] * size["etp"] * size["pp"]
        if gpus % dense or gpus % expert or gbs % (size["mbs"] * gpus // dense):
            continue
        if (experts % size["ep"] if experts else size["ep"] > 1) or (size["pp"] == 1 and size["vpp"] > 1):
            continue
        yield dict(zip(keys, values, strict=True))
