"""A public recipe carried over to a cluster it was not written for, by stated minimal rules.

The batch, the sequence, the number format and everything else that defines the training stay. Among all layouts
that can start and are predicted to fit, the one that moves the sizes least is taken; memory is then saved by the least
recomputation that helps, and only where none does by the allocator and the optimizer; ties go to the fastest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from attune_lab.contracts import CostModel, Estimate, UserError
from attune_lab.parameters import LAYOUT
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.remembered import remembered
from attune_lab.space import SearchSpace
from simulator.hardware import ClusterSpec

Edits: TypeAlias = dict[str, Value]

MEMORY_LIMIT = 0.88
"""Largest predicted peak that counts as fitting, as a fraction of the accelerator's memory."""

_MAX_LAYOUTS = 3000
_ALLOCATOR: Edits = {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_SAVERS = frozenset({"recompute", "optimizer_offload", *_ALLOCATOR})
_LABELS = {
    "tp": "tensor parallelism", "pp": "pipeline parallelism", "cp": "context parallelism",
    "ep": "expert parallelism", "etp": "expert tensor parallelism", "vpp": "virtual pipeline stages",
    "mbs": "the micro-batch",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One parameter that was moved, with one sentence why."""

    key: str
    before: Value
    after: Value
    why: str


@dataclass(frozen=True)
class CarriedOver:
    """The recipe for this cluster and what was changed, nothing when it already started and fitted."""

    recipe: Recipe
    changes: tuple[Change, ...]


@remembered(last=32)
def carry_over(recipe: Recipe, cluster: ClusterSpec, cost_model: CostModel) -> CarriedOver:
    """The recipe closest to ``recipe`` that can start and fits on ``cluster``.

    Raises:
        UserError: nothing fits; the message has the smallest predicted peak.
    """
    (original,) = cost_model.estimate([recipe])
    if _fits(original):
        return CarriedOver(recipe, ())
    space = SearchSpace(recipe, cluster)
    savings = _savings(space)
    smallest = math.inf
    for layouts in _layouts_by_distance(space):
        leanest = _leanest(space, cost_model, layouts, savings[-1])
        smallest = min([smallest, *(estimate.peak_memory_bytes for _, estimate in leanest)])
        if not any(_fits(estimate) for _, estimate in leanest):
            continue
        for way in itertools.chain.from_iterable(savings):
            group = _estimated(space, cost_model, [{**edits, **way} for edits in layouts])
            fitting = [pair for pair in group if _fits(pair[1])]
            if fitting:
                chosen, _ = min(fitting, key=lambda pair: pair[1].step_time_s)
                return CarriedOver(chosen, _changes(space, chosen, original, cluster))
    raise UserError(_refusal(original, cluster, smallest))


def _fits(estimate: Estimate) -> bool:
    return not estimate.problems and estimate.peak_memory_bytes <= MEMORY_LIMIT * estimate.memory_capacity_bytes


def _estimated(space: SearchSpace, cost_model: CostModel, group: Sequence[Edits]) -> list[tuple[Recipe, Estimate]]:
    """The recipes of a group that can start, with their estimates."""
    recipes = [space.apply(space.baseline, edits) for edits in group]
    return [pair for pair in zip(recipes, cost_model.estimate(recipes), strict=True) if not pair[1].problems]


def _layouts_by_distance(space: SearchSpace) -> Iterator[list[Edits]]:
    """Edits that make each legal layout, those that move the sizes equally far together, the nearest first."""
    own = {key: int(str(space.value(space.baseline, key))) if key in space.parameters else 1 for key in LAYOUT}

    def distance(layout: Mapping[str, int]) -> float:
        return round(sum(abs(math.log2(layout[key] / own[key])) for key in LAYOUT), 6)

    layouts = sorted(space.enumerate_layouts(), key=distance)[:_MAX_LAYOUTS]
    for _, group in itertools.groupby(layouts, key=distance):
        yield [{key: size for key, size in layout.items() if size != own[key]} for layout in group]


def _savings(space: SearchSpace) -> list[list[Edits]]:
    """Ways to save memory, least intrusive first: the levels of recomputation, without and with other means."""
    choices = space.parameters["recompute"].choices
    deeper = choices[choices.index(space.value(space.baseline, "recompute")) + 1 :]
    recompute: list[Edits] = [{}, *({"recompute": level} for level in deeper)]
    shares = ("half", "all") if "optimizer_offload" in space.parameters else ()
    others: list[Edits] = [{}, _ALLOCATOR, *({**_ALLOCATOR, "optimizer_offload": share} for share in shares)]
    return [[{**level, **other} for level in recompute] for other in others]


def _leanest(
    space: SearchSpace, cost_model: CostModel, layouts: Sequence[Edits], levels: Sequence[Edits]
) -> list[tuple[Recipe, Estimate]]:
    """What ``layouts`` need at the deepest of ``levels`` that can start: deep ones clash with graphs and overlaps."""
    for level in reversed(levels):
        startable = _estimated(space, cost_model, [{**edits, **level} for edits in layouts])
        if startable:
            return startable
    return []


def _changes(space: SearchSpace, after: Recipe, original: Estimate, cluster: ClusterSpec) -> tuple[Change, ...]:
    limit = f"{MEMORY_LIMIT:.0%} of {_gib(original.memory_capacity_bytes)}"
    saving = f"keeps the predicted peak of every stage within {limit}"
    if original.problems:
        sizing = f"as published it cannot start on {cluster.name}"
    else:
        sizing = f"as published it is predicted to need {_gib(original.peak_memory_bytes)} where {limit} may be used"
    return tuple(
        Change(key, old, new, f"{_label(space, key)} from {old} to {new}: {saving if key in _SAVERS else sizing}")
        for key, (old, new) in space.changed(space.baseline, after).items()
    )


def _label(space: SearchSpace, key: str) -> str:
    return _LABELS.get(key, space.parameters[key].label)


def _refusal(original: Estimate, cluster: ClusterSpec, best_peak: float) -> str:
    if math.isinf(best_peak):
        reason = original.problems[0] if original.problems else "no layout divides this cluster"
        return f"the recipe cannot be split over {cluster.name}: {reason}"
    return (
        f"no layout of the recipe fits on {cluster.name}: the smallest predicted peak is {_gib(best_peak)} and "
        f"{MEMORY_LIMIT:.0%} of {_gib(cluster.accelerator.memory_bytes)} may be used; take more or larger GPUs"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
