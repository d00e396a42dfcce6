"""What the points of a search space are to a world: columns of jobs, and tables of what is legal and without defect.

A point chooses one option on every axis (`attune_lab.points`). What an option does to the columns of `Jobs` and to the
facts that defects hang on is read from recipes once, so that columns of any number of points are looked up.

Shape letters:  N = points,  A = axes,  P = pipeline stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.cluster.simulated import installed
from attune_lab.counting import Bools, Ints, Table
from attune_lab.gate.defects import active, defects
from attune_lab.gate.facts import facts_of
from attune_lab.points import Points
from attune_lab.recipe.effective import effective, shape_of
from attune_lab.recipe.expressions import Expression, UnknownName
from attune_lab.recipe.jobs import job_columns
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.space import SearchSpace
from simulator.hardware import ClusterSpec
from simulator.job import Jobs, make_jobs
from simulator.world import TRIGGERS, World

_DERIVED: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], int]]] = {
    "dp": (("tp", "pp", "cp"), lambda v: v["world_size"] // (v["tp"] * v["pp"] * v["cp"])),
    "num_microbatches": (("dp", "mbs"), lambda v: v["gbs"] // (v["mbs"] * max(v["dp"], 1))),
}
"""Facts that more axes move than are worth reading together: the facts they follow from, and how; in that order."""


@dataclass(frozen=True)
class Column:
    """What points have in one column: looked up by the options of a few axes.

    Attributes:
        axes: numbers of the axes that move it, ascending.
        values: one dimension for each of them (the stages' layers have one more, P).
    """

    axes: tuple[int, ...]
    values: NDArray[Any]

    def of(self, options: Ints) -> NDArray[Any]:
        """The values of points, from shape (N, A) to (N,) or (N, P)."""
        found: NDArray[Any] = self.values[tuple(options[:, axis] for axis in self.axes)]
        return found

    def over(self, axes: Sequence[int]) -> NDArray[Any]:
        """The values with a dimension for each of ``axes``, of size 1 where they do not depend on it."""
        sizes = dict(zip(self.axes, self.values.shape, strict=True))
        return self.values.reshape([sizes.get(axis, 1) for axis in axes])


class Choices:
    """The points of one space in one world.

    Attributes:
        names: of the axes.
        rows: combinations of options of the first axes, the layouts, shape (R, 6).
        columns: the columns of `Jobs` that options move.
        tables: which options may go together: rules of the stack first, then those that keep defects out.
    """

    def __init__(self, space: SearchSpace, world: World) -> None:
        """Read what every option does.

        Raises:
            UserError: the baseline uses a format that is not simulated.
        """
        self._world, self._baseline = world, space.baseline
        self._points = Points(space.baseline, world.cluster, space.parameters)
        self._axes = [axis.options for axis in self._points.axes]
        self.names = tuple(axis.key for axis in self._points.axes)
        self.rows = self._points.rows()
        self._read: dict[tuple[int, ...], dict[str, Any]] = {}
        self._facts_read: dict[tuple[int, ...], dict[str, Any]] = {}
        self._columns_of_baseline = self._job_columns(self._own)
        self._movers_of_columns = self._movers(self._job_columns)
        self.columns = {name: Column(axes, self._values(name, axes)) for name, axes in self._movers_of_columns.items()}
        self.tables = [*self._points.tables(), *self._without_known_defects(), *self._without_hidden_defects()]

    @property
    def cluster(self) -> ClusterSpec:
        """Where the points run."""
        return self._world.cluster

    def options(self, point: Mapping[str, Value]) -> list[int]:
        """The options of a point of the space, A of them."""
        return self._points.options(point)

    def options_of(self, axis: int) -> int:
        """How many options an axis has."""
        return len(self._axes[axis])

    def recipe(self, options: Ints) -> Recipe:
        """The recipe of one point, from shape (A,)."""
        return self._points.recipe(options.tolist())

    def jobs(self, options: Ints, instead: Mapping[str, Any] | None = None) -> Jobs:
        """The jobs of points, shape (N, A); ``instead`` has columns that are taken in place of theirs."""
        found = {name: column.of(options) for name, column in self.columns.items()}
        columns = {**self._columns_of_baseline, **found, **(instead or {})}
        stage_layers = np.atleast_2d(columns.pop("stage_layers"))[:, : np.max(columns["pp"])]
        return make_jobs(shape_of(self._baseline), self.cluster, stage_layers=stage_layers, **columns)

    # What options do

    @cached_property
    def _own(self) -> tuple[int, ...]:
        """The options of the baseline."""
        return tuple(self._points.options({}))

    @cached_property
    def _used(self) -> list[list[int]]:
        """The options of each axis that a point may choose."""
        fixed = self.rows.shape[1]
        sizes = [np.unique(self.rows[:, axis]).tolist() for axis in range(fixed)]
        return [*sizes, *(list(range(len(options))) for options in self._axes[fixed:])]

    def _job_columns(self, options: tuple[int, ...]) -> dict[str, Any]:
        """The columns of the job with these options."""
        if options not in self._read:
            self._read[options] = job_columns(effective(self._points.recipe(options), self.cluster))
        return self._read[options]

    def _facts(self, options: tuple[int, ...]) -> dict[str, Any]:
        """What conditions of defects may ask of the recipe with these options."""
        if options not in self._facts_read:
            recipe = self._points.recipe(options)
            self._facts_read[options] = facts_of(recipe, self.cluster, installed(self._world, recipe))
        return self._facts_read[options]

    def _movers(self, read: Callable[[tuple[int, ...]], Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """The axes that move each value of a reading.

        Each axis is moved alone, beside the baseline's other options, everybody's first and everybody's last: a value
        that hangs on two axes moves in one of them.
        """
        last = [
            ([o for o in used if axis[o].values] or used)[-1] for used, axis in zip(self._used, self._axes, strict=True)
        ]
        found: dict[str, set[int]] = {}
        for beside in (self._own, tuple(used[0] for used in self._used), tuple(last)):
            for axis, used in enumerate(self._used):
                seen = [read((*beside[:axis], option, *beside[axis + 1 :])) for option in used]
                for name in seen[0].keys() | seen[-1].keys():
                    if any(values.get(name) != seen[0].get(name) for values in seen):
                        found.setdefault(name, set()).add(axis)
        return {name: tuple(sorted(axes)) for name, axes in found.items()}

    def _values(self, name: str, axes: tuple[int, ...]) -> NDArray[Any]:
        """One column of jobs over the options of these axes."""
        read = {place: self._job_columns(self._beside(axes, place))[name] for place in self._places(axes)}
        if name == "stage_layers":
            table = np.zeros((*self._sizes(axes), max(map(len, read.values()))), dtype=np.int64)
            for place, layers in read.items():
                table[place][: len(layers)] = layers
            return table
        one = next(iter(read.values()))
        table = np.zeros(self._sizes(axes), dtype=np.asarray(one).dtype)
        for place, value in read.items():
            table[place] = value
        return table

    def _places(self, axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Every combination of options of these axes that points may have."""
        return itertools.product(*(self._used[axis] for axis in axes))

    def _beside(self, axes: Sequence[int], place: Sequence[int]) -> tuple[int, ...]:
        """The baseline's options with others on these axes."""
        options = list(self._own)
        for axis, option in zip(axes, place, strict=True):
            options[axis] = option
        return tuple(options)

    def _sizes(self, axes: Sequence[int]) -> list[int]:
        return [len(self._axes[axis]) for axis in axes]

    # Where nothing trains another model than the baseline

    def _without_known_defects(self) -> Iterator[Table]:
        """Where each known defect that the baseline does not have is not active either."""
        base, movers = self._facts(self._own), self._movers(self._facts)
        for name, (sources, _) in _DERIVED.items():
            movers[name] = tuple(sorted({axis for source in sources for axis in movers.get(source, ())}))
        inherited, _ = active(base)
        for defect in defects():
            if defect not in inherited and defect.concerns(base):
                yield from self._where_not(defect.when, base, movers)

    def _where_not(
        self, condition: Expression, base: Mapping[str, Any], movers: Mapping[str, tuple[int, ...]]
    ) -> Iterator[Table]:
        """Where a condition over facts does not hold, over the axes it comes to ask for.

        No table where it asks for a fact that nobody knows: as in `active`, that leaves the question open.
        """
        moved = [name for name in _with_sources(condition.names) if movers.get(name)]
        fixed = {name: value for name, value in base.items() if name not in moved}
        axes: tuple[int, ...] = ()
        while True:
            seen = [name for name in moved if name not in _DERIVED and set(movers[name]) <= set(axes)]
            read = {name: self._fact(name, movers[name]) for name in seen}
            allowed: Bools = np.ones(self._sizes(axes), dtype=np.bool_)
            try:
                for place in self._places(axes):
                    here = dict(zip(axes, place, strict=True))
                    values = {name: table[tuple(here[a] for a in movers[name])] for name, table in read.items()}
                    allowed[place] = not condition.evaluate(_completed(fixed | values))
            except UnknownName as error:
                if error.name not in moved:
                    return
                axes = tuple(sorted({*axes, *movers[error.name]}))
            else:
                yield Table(axes, allowed)
                return

    def _fact(self, name: str, axes: tuple[int, ...]) -> dict[tuple[int, ...], Any]:
        """One fact by the options of the axes that move it."""
        return {place: self._facts(self._beside(axes, place)).get(name) for place in self._places(axes)}

    def _without_hidden_defects(self) -> Iterator[Table]:
        """Where no hidden defect of the world is active that the baseline does not have."""
        for defect in self._world.hidden:
            axes = sorted({axis for name in defect.columns for axis in self._movers_of_columns.get(name, ())})
            if axes and not defect.active(self.jobs(np.array([self._own])))[0]:
                held = {
                    name: self.columns[name].over(axes) if name in self.columns else self._columns_of_baseline[name]
                    for name in defect.columns
                }
                triggered = TRIGGERS[defect.trigger](**held)
                yield Table(tuple(axes), ~np.broadcast_to(triggered, self._sizes(axes)))


def _with_sources(names: Iterable[str]) -> set[str]:
    """Names of facts, and of those that they follow from."""
    found = set(names)
    for name, (sources, _) in reversed(list(_DERIVED.items())):
        found |= set(sources) if name in found else set()
    return found


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """Facts with those that follow from them, where what they follow from is known."""
    for name, (sources, formula) in _DERIVED.items():
        if all(source in values for source in sources):
            values[name] = formula(values)
    return values
