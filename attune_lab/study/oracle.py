"""The known optimum of a world: its fastest recipe that is legal, fits, and trains the model that the baseline trains.

Every legal point of the space counts. They are found by branch and bound: layouts first, then the other axes in groups,
those that matter most first. After each group the points so far are priced at their best (`attune_lab.study.bounds`),
and dropped where that does not beat the best recipe known. A few passes keep only the most promising points, to know a
good recipe; the last keeps all, so what it finds is the optimum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attune_lab.cluster.simulated import installed
from attune_lab.contracts import UserError
from attune_lab.counting import Ints, Table
from attune_lab.gate.defects import active
from attune_lab.gate.facts import facts_of
from attune_lab.recipe.jobs import jobs_for
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.space import SearchSpace
from attune_lab.study.bounds import FAST, Bounds
from attune_lab.study.choices import Choices
from simulator.job import Floats
from simulator.world import World

if TYPE_CHECKING:
    from attune_lab.workbench import Workbench

_FIRST = (
    ("recompute",),
    ("dispatcher", "ep_overlap", "env.CUDA_DEVICE_MAX_CONNECTIONS"),
    ("overlap_grad_reduce", "overlap_param_gather", "bucket_size"),
    ("cuda_graph",),
    ("optimizer_offload",),
)
"""Axes that are settled first, together where the bound of one alone says little."""

_WIDTHS = (100, 3_000)
"""Points that the first passes keep."""

MOST_POINTS = 2_000_000
"""Points that the last pass keeps; where there are more the optimum is not proven."""


@dataclass(frozen=True)
class Optimum:
    """The best recipe of a space in a world.

    Attributes:
        recipe, point: the recipe, and its values by parameter.
        step_time_s, tokens_per_s_per_gpu: its truth, see `simulator.world.Truth`.
        gain: tokens per second over the baseline's, minus 1.
        proven: no legal point without defects that fits is faster.
        bound_s: no such point is faster than this; ``step_time_s`` where that is proven.
        evaluated: points priced to find it, settled or not.
    """

    recipe: Recipe
    point: Mapping[str, Value]
    step_time_s: float
    tokens_per_s_per_gpu: float
    gain: float
    proven: bool
    bound_s: float
    evaluated: int


def optimum(bench: Workbench, world: World) -> Optimum:
    """The optimum of the space around a workbench's baseline; see `Oracle.optimum`."""
    return Oracle(SearchSpace(bench.baseline, bench.cluster), world).optimum()


class Oracle:
    """What is true of the recipes of one space in one world; no tuner may ask it."""

    def __init__(self, space: SearchSpace, world: World) -> None:
        """Ask about the recipes around ``space.baseline`` on the cluster of ``world``."""
        self._space, self._world = space, world

    def step_time_s(self, recipe: Recipe) -> float:
        """Seconds of a step of a recipe in truth, inf where it does not fit.

        Raises:
            ValueError, UserError: it cannot run at all.
        """
        truth = self._world.truth(jobs_for([recipe], self._world.cluster))
        return float(truth.step_time_s[0]) if truth.fits[0] else float("inf")

    def true_gain(self, recipe: Recipe) -> float:
        """Tokens per second of a recipe over the baseline's in truth, minus 1; -1 for a recipe that does not fit."""
        return self._baseline_s / self.step_time_s(recipe) - 1

    def is_faulty(self, recipe: Recipe) -> tuple[str, ...]:
        """Defects that are active in a recipe and not in the baseline: known ones by id, hidden ones by what sets
        them off. Empty where the recipe trains what the baseline trains."""
        inherited = self._defects(self._space.baseline)
        return tuple(name for name in self._defects(recipe) if name not in inherited)

    def _defects(self, recipe: Recipe) -> list[str]:
        cluster = self._world.cluster
        known, _ = active(facts_of(recipe, cluster, installed(self._world, recipe)))
        jobs = jobs_for([recipe], cluster)
        return [*(d.id for d in known), *(f"hidden: {d.trigger}" for d in self._world.hidden if d.active(jobs)[0])]

    @cached_property
    def _baseline_s(self) -> float:
        """Of a step of the baseline, where it does not fit as if it did."""
        jobs = jobs_for([self._space.baseline], self._world.cluster)
        return float(self._world.truth(jobs).step_time_s[0])

    def optimum(self) -> Optimum:
        """The fastest legal recipe that fits and is not faulty.

        Raises:
            UserError: no legal recipe fits.
        """
        search = _Search(Choices(self._space, self._world), self._world)
        found, rest_s = search.run()
        if found is None:
            raise UserError(f"no legal recipe fits into {self._world.cluster.name} in this world; use a larger cluster")
        recipe = search.choices.recipe(found)
        seconds = self.step_time_s(recipe)
        tokens = int(str(recipe.get("gbs"))) * int(str(recipe.get("seq_len")))
        return Optimum(
            recipe=recipe,
            point=self._space.point(recipe),
            step_time_s=seconds,
            tokens_per_s_per_gpu=tokens / seconds / self._world.cluster.n_gpus,
            gain=self._baseline_s / seconds - 1,
            proven=rest_s >= seconds,
            bound_s=min(rest_s, seconds),
            evaluated=search.bounds.priced,
        )


@dataclass(frozen=True)
class _Points:
    """Points with open axes: places of their layouts, options by axis, shape (N, A), and bounds on their step."""

    rows: Ints
    options: Ints
    bounds: Floats

    def take(self, chosen: Ints) -> _Points:
        return _Points(self.rows[chosen], self.options[chosen], self.bounds[chosen])


class _Search:
    """Branch and bound over the points of one space in one world."""

    def __init__(self, choices: Choices, world: World) -> None:
        self.choices, self.bounds, self._world = choices, Bounds(choices, world), world
        self._tables = [reduced for table in choices.tables if not (reduced := table.reduced()).allowed.all()]
        self._layout_axes = choices.rows.shape[1]
        self._groups = list(self._grouped())

    def _grouped(self) -> Iterator[tuple[int, ...]]:
        """The axes to settle, in groups: first those that the bounds know no best option of."""
        number = {name: axis for axis, name in enumerate(self.choices.names)}
        unknown = [column.axes for name, column in self.choices.columns.items() if name not in FAST]
        left = dict.fromkeys(range(self._layout_axes, len(self.choices.names)))
        wanted: list[Sequence[int]] = [sorted({axis for axes in unknown for axis in axes})]
        wanted += [[number[name] for name in names if name in number] for names in _FIRST]
        wanted += [[axis] for axis in left]
        for axes in wanted:
            group = tuple(axis for axis in axes if axis in left)
            left = {axis: None for axis in left if axis not in group}
            if group or axes is wanted[0]:
                yield group

    def run(self) -> tuple[Ints | None, float]:
        """The options of the best point, and what the points that were not looked at take at least, in seconds."""
        best, ceiling = None, np.inf
        rest = np.inf
        for width in (*_WIDTHS, MOST_POINTS):
            leaves, rest = self._pass(width, ceiling)
            truth = self._world.truth(self.choices.jobs(leaves.options)) if len(leaves.rows) else None
            if truth is not None:
                seconds = np.where(truth.fits, truth.step_time_s, np.inf)
                if seconds.min() < ceiling:
                    best, ceiling = leaves.options[int(seconds.argmin())], float(seconds.min())
            if rest >= ceiling:
                break
        return best, float(rest)

    def _pass(self, width: int, ceiling: float) -> tuple[_Points, float]:
        """The settled points whose bound is below the ceiling; and the least bound of those that made room for others,
        where more than ``width`` were to be kept."""
        rest = np.inf
        points = self._roots.take(np.flatnonzero(self._roots.bounds < ceiling))
        settled = set(range(self._layout_axes)) | set(self._groups[0])
        points, rest = _narrowed(points, width, rest)
        for group in self._groups[1:]:
            for axis in group:
                settled.add(axis)
                points = self._settled(points, axis, settled)
            bounds = self.bounds.step_seconds(points.rows, points.options, settled)
            points = _Points(points.rows, points.options, bounds).take(np.flatnonzero(bounds < ceiling))
            points, rest = _narrowed(points, width, rest)
        return points, rest

    @cached_property
    def _roots(self) -> _Points:
        """Every layout, with the axes settled that the bounds know no best option of."""
        count = len(self.choices.rows)
        options = np.zeros((count, len(self.choices.names)), dtype=np.int64)
        options[:, : self._layout_axes] = self.choices.rows
        points = _Points(np.arange(count), options, np.zeros(count))
        settled = set(range(self._layout_axes))
        for table in self._tables:
            if set(table.axes) <= settled:
                points = points.take(np.flatnonzero(_allowed(table, points.options)))
        for axis in self._groups[0]:
            settled.add(axis)
            points = self._settled(points, axis, settled)
        return _Points(points.rows, points.options, self.bounds.step_seconds(points.rows, points.options, settled))

    def _settled(self, points: _Points, axis: int, settled: Collection[int]) -> _Points:
        """The points with every option of an axis that goes together with what is settled."""
        count = self.choices.options_of(axis)
        grown = points.take(np.repeat(np.arange(len(points.rows)), count))
        grown.options[:, axis] = np.tile(np.arange(count), len(points.rows))
        for table in self._tables:
            if axis in table.axes and set(table.axes) <= set(settled):
                grown = grown.take(np.flatnonzero(_allowed(table, grown.options)))
        return grown


def _allowed(table: Table, options: Ints) -> Ints:
    return table.allowed[tuple(options[:, axis] for axis in table.axes)]


def _narrowed(points: _Points, width: int, rest: float) -> tuple[_Points, float]:
    """The ``width`` points of the lowest bounds, and the least of ``rest`` and of the other bounds."""
    if len(points.rows) <= width:
        return points, rest
    order = np.argsort(points.bounds, kind="stable")
    return points.take(order[:width]), min(rest, float(points.bounds[order[width]]))
