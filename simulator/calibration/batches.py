"""Measurement points as batches of jobs: one batch for each model, cluster, stack and version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.points import Point
from simulator.job import DEFAULTS, Jobs, Recompute, make_jobs
from simulator.memory import MemoryEstimate, peak_memory
from simulator.memory_physics import MemoryPhysics, memory_physics_of
from simulator.posterior import DEFAULT_PHYSICS
from simulator.step import simulate_step

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Points that are priced together.

    Attributes:
        rows: positions of the points in their table.
        jobs: the points as a batch of jobs.
        stack, version: whose physics apply; see `simulator.posterior.Posterior.physics`.
        prints_first_rank: the stack prints the first pipeline stage's memory, not the fullest one's.
        statistics: what each point's measured memory counts.
        recompute_stated: which points say what is recomputed.
    """

    rows: tuple[int, ...]
    jobs: Jobs
    stack: str
    version: str
    prints_first_rank: bool
    statistics: tuple[str, ...]
    recompute_stated: tuple[bool, ...]


def batch_points(points: Mapping[int, Point]) -> tuple[list[Batch], dict[int, str]]:
    """Batches of ``points`` (by position in their table), and for those that cannot be priced the reason.

    A batch that the simulator refuses is taken apart, so that a bad point spoils no other.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, point in points.items():
        groups[point.shape, point.cluster, point.stack.name, point.version].append(row)
    batches: list[Batch] = []
    refused: dict[int, str] = {}
    for rows in groups.values():
        batches += _priced(rows, points, refused)
    return batches, refused


def _priced(rows: Sequence[int], points: Mapping[int, Point], refused: dict[int, str]) -> Iterator[Batch]:
    members = [points[row] for row in rows]
    try:
        batch = _batch(rows, members)
        simulate_step(batch.jobs, DEFAULT_PHYSICS)
        _check_layouts(batch, members)
    except (ValueError, ArithmeticError) as error:
        if len(rows) == 1:
            refused[rows[0]] = str(error)
        else:
            for row in rows:
                yield from _priced([row], points, refused)
    else:
        yield batch


def _check_layouts(batch: Batch, members: Sequence[Point]) -> None:
    """Refuse a batch in which a layout that is not stated, and so taken as plain data parallelism, does not fit.

    Raises:
        ValueError: what is missing.
    """
    unstated = ~np.array([point.layout_stated for point in members])
    if not unstated.any():
        return
    demand = memory_demand(batch.jobs, batch_memory(batch, memory_physics_of(batch.stack)))[unstated].max()
    if demand > 1:
        raise ValueError(
            f"columns 'tp', 'pp', 'ep' and 'zero_stage' are blank, and plain data parallelism needs {demand:.1f} times "
            "the memory of the accelerator; state the layout"
        )


def _batch(rows: Sequence[int], members: Sequence[Point]) -> Batch:
    """One batch; a lever that some points do not name takes the simulator's default there."""
    first = members[0]
    names = sorted({name for point in members for name in point.columns})
    columns = {name: [point.columns.get(name, DEFAULTS.get(name)) for point in members] for name in names}
    jobs = make_jobs(first.shape, first.cluster, **columns)
    return Batch(
        rows=tuple(rows),
        jobs=jobs,
        stack=first.stack.name,
        version=first.version,
        prints_first_rank=first.stack.prints_first_rank,
        statistics=tuple(point.memory_statistic for point in members),
        recompute_stated=tuple(point.recompute_stated for point in members),
    )


def batch_memory(batch: Batch, physics: MemoryPhysics) -> MemoryEstimate:
    """Memory of every job of the batch.

    Where recomputation is not stated and the stack's default does not fit, that of all layers is taken: only what is
    out of memory either way is so.
    """
    jobs = batch.jobs
    found = peak_memory(jobs, physics)
    tight = ~np.array(batch.recompute_stated) & (memory_demand(jobs, found) > 1)
    if not tight.any():
        return found
    recompute = np.where(tight, int(Recompute.FULL), jobs.recompute)
    return peak_memory(
        replace(jobs, recompute=recompute, recompute_layers=np.where(tight, 0, jobs.recompute_layers)), physics
    )


def memory_demand(jobs: Jobs, memory: MemoryEstimate) -> Floats:
    """Memory that must fit on the fullest rank of every job over the memory there is, shape (B,)."""
    demand: Floats = memory.peak_reserved_bytes.max(axis=1) / jobs.cluster.accelerator.memory_bytes
    return demand


def measured_peak(batch: Batch, memory: MemoryEstimate) -> Floats:
    """Peak memory of every job as its measurement counts it, bytes, shape (B,).

    That of the fullest stage, or of the first where the stack prints no other; ``reserved`` and ``nvidia_smi`` mean
    what they say, everything else what torch calls allocated.
    """
    jobs, first = np.arange(batch.jobs.size), batch.prints_first_rank
    stage = np.zeros_like(jobs) if first else memory.peak_reserved_bytes.argmax(axis=1)
    used, kinds = memory.peak_reserved_bytes[jobs, stage], np.array(batch.statistics)
    shown = np.where(kinds == "reserved", used - memory.outside_bytes, memory.peak_allocated_bytes[jobs, stage])
    peak: Floats = np.where(kinds == "nvidia_smi", used, shown)
    return peak
