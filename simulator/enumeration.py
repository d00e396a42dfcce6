"""The best layouts of a whole declared search space, priced chunk by chunk.

Shape letters:  B = jobs of a chunk,  N = legal combinations of sizes,  M = combinations of levers,  K = layouts kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.chunks import CHUNK, chunks, keep_freed_memory
from simulator.hardware import ClusterSpec
from simulator.job import DEFAULTS, Ints, Jobs, make_jobs
from simulator.legality import legal
from simulator.memory import peak_memory
from simulator.models import ModelShape
from simulator.physics import Physics
from simulator.posterior import DEFAULT_PHYSICS
from simulator.step import step_seconds

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

SIZES = ("pp", "tp", "cp", "ep", "etp", "seq_len", "gbs", "mbs", "vpp")
"""Columns of `Jobs` that must divide the model, the cluster or the batch; a space runs through them in this order."""


@dataclass(frozen=True)
class Space:
    """Every legal combination of sizes, each with every combination of levers.

    Attributes:
        model, cluster: shared by all layouts.
        sizes: legal combinations of `SIZES`, by column, shape (N,) each.
        levers: combinations of any other columns, by column, shape (M,) each; M is 1 without any.
    """

    model: ModelShape
    cluster: ClusterSpec
    sizes: Columns
    levers: Columns

    @property
    def size(self) -> int:
        """Points of the space, N times M; some have levers that are not legal beside their sizes."""
        return len(self.sizes["pp"]) * self._combinations

    @property
    def _combinations(self) -> int:
        return max((len(column) for column in self.levers.values()), default=1)

    def jobs(self, index: Ints) -> Jobs:
        """The jobs at these points, legal or not: point i has sizes i // M and levers i % M."""
        return make_jobs(self.model, self.cluster, **self._columns(index))

    def batches(self, length: int = CHUNK) -> Iterator[tuple[Ints, Jobs]]:
        """Points and jobs of the legal layouts, of up to ``length`` points at a time."""
        for index in self.legal_points(length):
            yield index, self.jobs(index)

    def legal_points(self, length: int = CHUNK) -> Iterator[Ints]:
        """The legal layouts, found among ``length`` points at a time."""
        usual = {name: np.asarray(value) for name, value in DEFAULTS.items()}
        for chunk in chunks(self.size, length):
            index = np.arange(chunk.start, min(chunk.stop, self.size))
            runs = legal({**usual, **self._columns(index)}, self.model, self.cluster.n_gpus, about=self.levers)
            if runs.any():
                yield index[runs]

    def _columns(self, index: Ints) -> Columns:
        size, lever = np.divmod(index, self._combinations)
        sizes = {name: column[size] for name, column in self.sizes.items()}
        return sizes | {name: column[lever] for name, column in self.levers.items()}


def declare(model: ModelShape, cluster: ClusterSpec, **choices: Any) -> Space:
    """The space of all legal combinations of these choices.

    Args:
        model, cluster: shared by all layouts.
        choices: columns of `make_jobs`, a value or a sequence of values each; ``gbs`` and ``seq_len`` are required.
            Layers are split evenly over stages.

    Raises:
        TypeError: an unknown column, or ``gbs`` or ``seq_len`` missing.
    """
    missing, unknown = {"gbs", "seq_len"} - choices.keys(), choices.keys() - DEFAULTS.keys() - {"gbs", "seq_len"}
    if missing or unknown:
        raise TypeError(f"declare: unknown columns {sorted(unknown)}, missing {sorted(missing)}")
    sizes: Columns = {}
    for name in SIZES:
        sizes = _crossed(sizes, name, choices.pop(name, DEFAULTS.get(name)))
        runs = legal(sizes, model, cluster.n_gpus, about=(name,))
        sizes = {known: column[runs] for known, column in sizes.items()}
    levers: Columns = {}
    for name, values in choices.items():
        levers = _crossed(levers, name, values)
    return Space(model, cluster, sizes, levers)


def _crossed(columns: Columns, name: str, values: Any) -> Columns:
    """Every row of ``columns`` with each of the values as a further column."""
    added = np.atleast_1d(np.asarray(values))
    rows = max((len(column) for column in columns.values()), default=1) if columns else 1
    crossed = {known: np.repeat(column, len(added)) for known, column in columns.items()}
    return crossed | {name: np.tile(added, rows)}


@dataclass(frozen=True)
class Layouts:
    """Priced points of a space, shape (K,) each.

    Attributes:
        index: their places in the space, for `Space.jobs`.
        figures: step time in seconds, peak memory of the fullest rank in bytes, GPU-seconds per token; shape (K, 3).
    """

    index: Ints
    figures: Floats

    @property
    def step_time_s(self) -> Floats:
        """Seconds of one step."""
        return self.figures[:, 0]

    @property
    def peak_bytes(self) -> Floats:
        """Reserved memory of the fullest rank."""
        return self.figures[:, 1]

    @property
    def gpu_s_per_token(self) -> Floats:
        """Cost: times the price of a GPU-second it is dollars per token."""
        return self.figures[:, 2]

    def take(self, chosen: NDArray[Any]) -> Layouts:
        """Some of them."""
        return Layouts(self.index[chosen], self.figures[chosen])

    def joined(self, others: Layouts) -> Layouts:
        """These, then the others."""
        return Layouts(np.concatenate((self.index, others.index)), np.concatenate((self.figures, others.figures)))


_NONE = Layouts(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))


@dataclass(frozen=True)
class Enumeration:
    """What `enumerate_layouts` returns.

    Attributes:
        best: the cheapest layouts that fit, cheapest (for one batch size: fastest) first.
        front: layouts that fit and that no other betters in time, memory and cost at once, fastest first.
        legal, fitting: how many layouts may run, and how many of them fit in memory.
    """

    best: Layouts
    front: Layouts
    legal: int
    fitting: int


def enumerate_layouts(
    space: Space, physics: Physics = DEFAULT_PHYSICS, *, count: int = 20, memory_limit: float = 1.0, chunk: int = CHUNK
) -> Enumeration:
    """The ``count`` best layouts of a space that fit in memory, and its Pareto front.

    Of layouts with equal figures the first in the space is kept. Memory is that of one chunk.

    Args:
        space: what to go through.
        physics: constants; the default is the engineer's cost model.
        count: layouts to return.
        memory_limit: share of the accelerator's memory that a layout may fill.
        chunk: points priced at a time; the result does not depend on it.

    Raises:
        ValueError: a number format is not supported by the accelerator.
    """
    keep_freed_memory()
    best, front, priced, fitting = _NONE, _NONE, 0, 0
    room = memory_limit * space.cluster.accelerator.memory_bytes
    for index, jobs in space.batches(chunk):
        layouts = Layouts(index, _figures(jobs, physics))
        priced += index.size
        layouts = layouts.take(layouts.peak_bytes <= room)
        fitting += layouts.index.size
        best = _cheapest(best.joined(layouts), count)
        front = front.joined(layouts.take(~_bettered(layouts, front)))
        front = front.take(pareto_front(front.figures))
    return Enumeration(best, front, priced, fitting)


def cheapest_layouts(
    space: Space,
    no_dearer: Ints,
    physics: Physics = DEFAULT_PHYSICS,
    *,
    count: int = 20,
    memory_limit: float = 1.0,
    chunk: int = CHUNK,
) -> Layouts:
    """What `enumerate_layouts` calls ``best``, without pricing layouts that cannot be among them.

    Args:
        space, physics, count, memory_limit, chunk: see `enumerate_layouts`.
        no_dearer: for each combination of levers one that takes no longer with any sizes, shape (M,).

    Raises:
        ValueError: a number format is not supported by the accelerator.
    """
    keep_freed_memory()
    index = np.concatenate([_NONE.index, *space.legal_points(chunk)])
    size, lever = np.divmod(index, len(no_dearer))
    bases, at = np.unique(size * len(no_dearer) + no_dearer[lever], return_inverse=True)
    bounds = _bounds(space, bases, physics, chunk)[at]
    order = np.argsort(bounds, kind="stable")
    room, best = memory_limit * space.cluster.accelerator.memory_bytes, _NONE
    for part in chunks(order.size, chunk):
        if best.index.size == count and best.gpu_s_per_token[-1] < bounds[order[part.start]]:
            break
        points = np.sort(index[order[part]])
        fits = _peak(space.jobs(points), physics) <= room
        if fits.any():
            layouts = Layouts(points[fits], _figures(space.jobs(points[fits]), physics))
            best = _cheapest(_by_place(best.joined(layouts)), count)
    return best


def _bounds(space: Space, points: Ints, physics: Physics, chunk: int) -> Floats:
    """GPU-seconds per token of points, less what rounding may add, shape (K,)."""
    costs = []
    for part in chunks(points.size, chunk):
        jobs = space.jobs(points[part])
        costs.append(step_seconds(jobs, physics) * jobs.cluster.n_gpus / (jobs.gbs * jobs.seq_len))
    return np.concatenate([np.zeros(0), *costs]) * (1 - 1e-9)


def _by_place(layouts: Layouts) -> Layouts:
    return layouts.take(np.argsort(layouts.index))


def _figures(jobs: Jobs, physics: Physics) -> Floats:
    step = step_seconds(jobs, physics)
    return np.stack((step, _peak(jobs, physics), step * jobs.cluster.n_gpus / (jobs.gbs * jobs.seq_len)), axis=1)


def _peak(jobs: Jobs, physics: Physics) -> Floats:
    """Bytes of the fullest rank, shape (B,)."""
    peak: Floats = peak_memory(jobs, physics.memory).peak_reserved_bytes.max(axis=1)
    return peak


def _bettered(layouts: Layouts, front: Layouts) -> NDArray[np.bool_]:
    """Where a layout of the front is as good in everything, shape (K,); not all such places, but found quickly.

    Of the layouts of the front that are as fast, the one with least memory is compared.
    """
    if not front.index.size:
        return np.zeros(layouts.index.size, dtype=np.bool_)
    least = np.minimum.accumulate(front.peak_bytes)
    lightest = np.maximum.accumulate(np.where(front.peak_bytes == least, np.arange(least.size), 0))
    as_fast = np.searchsorted(front.step_time_s, layouts.step_time_s, side="right") - 1
    as_good = (front.figures[lightest[as_fast]] <= layouts.figures).all(axis=1)
    bettered: NDArray[np.bool_] = (as_fast >= 0) & as_good
    return bettered


def _cheapest(layouts: Layouts, count: int) -> Layouts:
    """The first ``count`` by cost, then by place."""
    cost = layouts.gpu_s_per_token
    if cost.size > count:
        layouts = layouts.take(cost <= np.partition(cost, count - 1)[count - 1])
    return layouts.take(np.argsort(layouts.gpu_s_per_token, kind="stable")[:count])


def pareto_front(figures: Floats) -> Ints:
    """Rows that no other row betters, in lexicographic order; smaller is better, the first of equal rows stays.

    Args:
        figures: shape (n, objectives).
    """
    order = np.lexsort(figures.T[::-1])
    rows, front = figures[order], []
    while order.size:  # nothing that follows can better the first row, and what it betters is dropped
        front.append(order[0])
        others = (rows < rows[0]).any(axis=1)
        order, rows = order[others], rows[others]
    return np.array(front, dtype=np.int64)
