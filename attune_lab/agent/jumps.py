"""The layouts worth a jump: the whole space of parallel sizes, priced by the cost model from coarse to fine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attune_lab.contracts import CostModel, Estimate
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

GRID = ("tp", "pp", "ep")
"""Sizes that decide what kind of layout it is; the coarse pass prices all their combinations."""

COARSE = 12
"""Layouts of the coarse pass whose other sizes are refined."""

SHORTLIST = 24
"""Layouts whose levels of recomputation and overlaps are priced."""

OVERLAPS = ("ep_overlap", "tp_comm_overlap")
"""What hides the communication of a layout. A layout may be worth its communication only where it is hidden, and
the overlap may be legal only on that layout: neither is found by moving one of them."""

Layout = tuple[int, ...]
Extras = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Jump:
    """A layout with the recomputation and the overlaps it needs, and what the cost model expects of it."""

    layout: Layout
    recipe: Recipe
    estimate: Estimate


class JumpFinder:
    """Finds the predicted fastest layouts for a recipe's other settings.

    Recomputation only ever costs time, so a layout's step time without it is a lower bound, and a layout that does
    not fit with whole layers recomputed fits at no level. That orders the layouts; levels are then tried on the best
    of them alone.
    """

    def __init__(self, space: SearchSpace, cost_model: CostModel) -> None:
        self._space, self._cost_model = space, cost_model
        rows = [[row[key] for key in LAYOUT] for row in space.enumerate_layouts()]
        self._sizes, self._legal = np.array(rows).reshape(-1, len(LAYOUT)), {tuple(row) for row in rows}
        levels, overlaps = space.parameters["recompute"].choices, [key for key in OVERLAPS if key in space.parameters]
        self._leanest: Extras = (("recompute", levels[0]),)
        self._strongest: Extras = (("recompute", levels[-1]),)
        keys = ("recompute", *overlaps)
        self._extras: list[Extras] = [
            tuple(zip(keys, values, strict=True))
            for values in itertools.product(levels, *(space.parameters[key].choices for key in overlaps))
        ]
        self._from = ""
        self._grid: list[Layout] = []
        self._priced: dict[tuple[Layout, Extras], Jump | None] = {}

    def find(self, recipe: Recipe, *, memory_limit: float, broken: Collection[tuple[str, Value]] = ()) -> list[Jump]:
        """One jump a layout, fastest first; layouts that fit at no level are left out.

        Args:
            memory_limit: largest predicted peak that is accepted, as a fraction of capacity.
            broken: (setting, value) that a jump must not bring along.
        """
        if recipe.digest != self._from:  # only the limit changes between questions about one recipe
            self._from, self._grid, self._priced = recipe.digest, self._nearest(recipe), {}
        coarse = self._lean(recipe, self._grid, memory_limit)[:COARSE]
        finer = {layout for jump in coarse for layout in self._variants(jump.layout)}
        lean = sorted(coarse + self._lean(recipe, finer, memory_limit), key=_step_time)[:SHORTLIST]
        extras = [extra for extra in self._extras if not any(item in broken for item in extra)]
        fastest: dict[Layout, Jump] = {}
        for jump in lean + self._price(recipe, [jump.layout for jump in lean], extras):
            if _fits(jump.estimate, memory_limit):
                fastest[jump.layout] = min(fastest.get(jump.layout, jump), jump, key=_step_time)
        return sorted(fastest.values(), key=_step_time)

    def _nearest(self, recipe: Recipe) -> list[Layout]:
        """For each combination of the grid's sizes, the legal layout nearest to the recipe's own in the others."""
        values = self._space.values(recipe)
        own = [int(str(values.get(key, 1))) for key in LAYOUT]
        distance = np.zeros(len(self._sizes))
        for column, size in zip(self._sizes.T, own, strict=True):
            choices, at = np.unique(column, return_inverse=True)
            distance += np.array([abs(math.log(choice / size)) for choice in choices.tolist()])[at]
        by_distance = self._sizes[np.lexsort((*self._sizes.T[::-1], distance))]
        _, first = np.unique(by_distance[:, [LAYOUT.index(name) for name in GRID]], axis=0, return_index=True)
        return [tuple(layout) for layout in by_distance[first].tolist()]

    def _variants(self, layout: Layout) -> Iterable[Layout]:
        """Legal layouts that differ in one size outside the grid."""
        for place, key in enumerate(LAYOUT):
            if key not in GRID and key in self._space.parameters:
                for size in self._space.parameters[key].choices:
                    variant = (*layout[:place], int(str(size)), *layout[place + 1 :])
                    if variant != layout and variant in self._legal:
                        yield variant

    def _lean(self, recipe: Recipe, layouts: Iterable[Layout], memory_limit: float) -> list[Jump]:
        """Layouts without recomputation, fastest first, where they would fit at least with the strongest."""
        layouts = sorted(layouts)
        strongest = self._price(recipe, layouts, [self._strongest])
        fitting = [jump.layout for jump in strongest if _fits(jump.estimate, memory_limit)]
        return sorted(self._price(recipe, fitting, [self._leanest]), key=_step_time)

    def _price(self, recipe: Recipe, layouts: Iterable[Layout], extras: Iterable[Extras]) -> list[Jump]:
        """Launchable combinations of ``layouts`` and ``extras``; new ones in one call of the model."""
        wanted = list(itertools.product(layouts, extras))
        new = [key for key in wanted if key not in self._priced]
        drafts = [self._apply(recipe, layout, extra) for layout, extra in new]
        for key, draft, estimate in zip(new, drafts, self._cost_model.estimate(drafts), strict=True):
            self._priced[key] = None if estimate.problems else Jump(key[0], draft, estimate)
        return [jump for key in wanted if (jump := self._priced[key]) is not None]

    def _apply(self, recipe: Recipe, layout: Layout, extras: Extras) -> Recipe:
        sizes = zip(LAYOUT, layout, strict=True)
        edits: dict[str, Value] = {key: size for key, size in sizes if key in self._space.parameters}
        return self._space.apply(recipe, {**edits, **dict(extras)})


def _fits(estimate: Estimate, memory_limit: float) -> bool:
    return estimate.peak_memory_bytes <= memory_limit * estimate.memory_capacity_bytes


def _step_time(jump: Jump) -> float:
    return jump.estimate.step_time_s
