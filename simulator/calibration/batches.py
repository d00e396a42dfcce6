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
from simulator.memory import peak_memory
from simulator.memory_physics import MemoryPhysics
from simulator.posterior import DEFAULT_PHYSICS
from simulator.step import StepEstimate, simulate_step

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
    except (ValueError, ArithmeticError) as error:
        if len(rows) == 1:
            refused[rows[0]] = str(error)
        else:
            for row in rows:
                yield from _priced([row], points, refused)
    else:
        yield batch


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


def measured_peak(batch: Batch, step: StepEstimate) -> Floats:
    """Peak memory of every job as its measurement counts it, bytes, shape (B,).

    That of the fullest stage, or of the first where the stack prints no other; ``reserved`` and ``nvidia_smi`` mean
    what they say, everything else what torch calls allocated.
    """
    jobs, first = np.arange(batch.jobs.size), batch.prints_first_rank
    stage = np.zeros_like(jobs) if first else step.peak_reserved_bytes.argmax(axis=1)
    used, kinds = step.peak_reserved_bytes[jobs, stage], np.array(batch.statistics)
    shown = np.where(kinds == "reserved", used - step.outside_bytes, step.peak_allocated_bytes[jobs, stage])
    peak: Floats = np.where(kinds == "nvidia_smi", used, shown)
    return peak


def needed_memory(batch: Batch, step: StepEstimate, physics: MemoryPhysics) -> Floats:
    """Bytes that must fit on the fullest rank of every job, shape (B,).

    Where recomputation is not stated, that of all layers is granted: only what is out of memory either way is so.
    """
    needed: Floats = step.peak_reserved_bytes.max(axis=1)
    unstated = ~np.array(batch.recompute_stated)
    if not unstated.any():
        return needed
    recompute = np.where(unstated, int(Recompute.FULL), batch.jobs.recompute)
    layers = np.where(unstated, 0, batch.jobs.recompute_layers)
    least = peak_memory(replace(batch.jobs, recompute=recompute, recompute_layers=layers), physics)
    granted: Floats = np.minimum(needed, least.peak_reserved_bytes.max(axis=1))
    return granted
