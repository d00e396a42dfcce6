"""The best point of a space in a world, by branch and bound.

Layouts are settled first, then the other axes in groups, those that matter most first. After each group the points so
far are priced at their best (`attune_lab.study.bounds`), and dropped where that does not beat the best point known. The
first passes keep only the most promising points, to know a good one; a pass that leaves none aside that could be better
proves that its best is the best there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.counting import Bools, Ints, Table
from attune_lab.study.bounds import FAST, Bounds
from attune_lab.study.choices import Choices
from simulator.job import Floats
from simulator.world import World

_FIRST = (
    ("recompute",),
    ("dispatcher", "ep_overlap", "env.CUDA_DEVICE_MAX_CONNECTIONS"),
    ("overlap_grad_reduce", "overlap_param_gather", "bucket_size"),
    ("cuda_graph",),
    ("optimizer_offload",),
)
"""Axes that are settled first, together where the bound says little before all of them are."""

WIDTHS = (300, 3_000, 30_000, 2_000_000)
"""Points that one pass after the other keeps; where the last leaves some aside the optimum may not be proven."""


@dataclass(frozen=True)
class Found:
    """What `best_point` returns.

    Attributes:
        options: of the best point by axis, shape (A,); None where no legal point fits.
        rest_s: no point that was left aside has a shorter step, in seconds; inf where none was.
        priced: points priced on the way, settled or not.
    """

    options: Ints | None
    rest_s: float
    priced: int


def best_point(choices: Choices, world: World) -> Found:
    """The point of the shortest true step among those that every table allows and that fit."""
    return _Search(choices, world).run()


def groups(choices: Choices) -> list[list[int]]:
    """The axes to settle after the layouts, in groups; the first is of those that the bounds know no best option of."""
    levers = range(choices.rows.shape[1], len(choices.names))
    moved = {axis for name, column in choices.columns.items() if name not in FAST for axis in column.axes}
    found = [[axis for axis in levers if axis in moved]]
    for names in (*_FIRST, *((name,) for name in choices.names)):
        left = [axis for axis in levers if not any(axis in group for group in found)]
        found.append([axis for axis in left if choices.names[axis] in names])
    return [found[0], *filter(None, found[1:])]


@dataclass(frozen=True)
class _Points:
    """Points with open axes: places of their layouts, options by axis, shape (N, A), and bounds on their step."""

    rows: Ints
    options: Ints
    bounds: Floats

    def take(self, chosen: NDArray[Any]) -> _Points:
        """Some of them."""
        return _Points(self.rows[chosen], self.options[chosen], self.bounds[chosen])

    def below(self, ceiling: float) -> _Points:
        """Those whose bound is below the ceiling."""
        return self.take(self.bounds < ceiling)


class _Search:
    """Branch and bound over the points of one space in one world."""

    def __init__(self, choices: Choices, world: World) -> None:
        self._choices, self._world, self._bounds = choices, world, Bounds(choices, world)
        self._tables = [table for table in map(Table.reduced, choices.tables) if not table.allowed.all()]
        self._layout_axes = choices.rows.shape[1]
        self._groups = groups(choices)

    def run(self) -> Found:
        """Passes of growing width, until none of the points left aside can be better."""
        best: Ints | None = None
        ceiling = rest = np.inf
        for width in WIDTHS:
            leaves, rest = self._pass(width, ceiling)
            if len(leaves.rows):
                truth = self._world.truth(self._choices.jobs(leaves.options))
                seconds = np.where(truth.fits, truth.step_time_s, np.inf)
                if seconds.min() < ceiling:
                    best, ceiling = leaves.options[int(seconds.argmin())], float(seconds.min())
            if rest >= ceiling:
                break
        return Found(best, float(rest), self._bounds.priced)

    def _pass(self, width: int, ceiling: float) -> tuple[_Points, float]:
        """The settled points whose bound is below the ceiling, and the least bound of those left aside on the way,
        where more than ``width`` were to be kept."""
        points, rest = _narrowed(self._roots.below(ceiling), width, np.inf)
        settled = {*range(self._layout_axes), *self._groups[0]}
        for group in self._groups[1:]:
            points = self._grown(points, group, settled)
            settled |= set(group)
            bounds = self._bounds.step_seconds(points.rows, points.options, settled)
            points, rest = _narrowed(replace(points, bounds=bounds).below(ceiling), width, rest)
        return points, rest

    @cached_property
    def _roots(self) -> _Points:
        """Every layout with every option of the first group."""
        count, sizes = len(self._choices.rows), range(self._layout_axes)
        options = np.zeros((count, len(self._choices.names)), dtype=np.int64)
        options[:, sizes] = self._choices.rows
        points = _Points(np.arange(count), options, np.zeros(count))
        for table in self._tables:
            if set(table.axes) <= set(sizes):
                points = points.take(_allowed(table, points.options))
        points = self._grown(points, self._groups[0], set(sizes))
        bounds = self._bounds.step_seconds(points.rows, points.options, {*sizes, *self._groups[0]})
        return replace(points, bounds=bounds)

    def _grown(self, points: _Points, group: Sequence[int], settled: Collection[int]) -> _Points:
        """The points with every combination of options of more axes that goes together with what is settled."""
        known = set(settled)
        for axis in group:
            known.add(axis)
            count = self._choices.options_of(axis)
            options = np.tile(np.arange(count), len(points.rows))
            points = points.take(np.repeat(np.arange(len(points.rows)), count))
            points.options[:, axis] = options
            for table in self._tables:
                if axis in table.axes and set(table.axes) <= known:
                    points = points.take(_allowed(table, points.options))
        return points


def _allowed(table: Table, options: Ints) -> Bools:
    allowed: Bools = table.allowed[tuple(options[:, axis] for axis in table.axes)]
    return allowed


def _narrowed(points: _Points, width: int, rest: float) -> tuple[_Points, float]:
    """The ``width`` points of the lowest bounds, and the least of ``rest`` and of the other bounds."""
    if len(points.rows) <= width:
        return points, rest
    order = np.argsort(points.bounds, kind="stable")
    return points.take(order[:width]), min(rest, float(points.bounds[order[width]]))
