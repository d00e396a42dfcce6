"""Measurement points as batches of jobs: one batch for each model, cluster, stack and version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.calibration.points import Point, Unsupported, parse_point
from simulator.job import DEFAULTS, Jobs, make_jobs
from simulator.physics import DEFAULT_PHYSICS
from simulator.step import simulate_step


@dataclass(frozen=True)
class Batch:
    """Points that are priced together.

    Attributes:
        rows: positions of the points in their table.
        points: the points themselves.
        jobs: the same as a batch of jobs.
        stack, version: whose physics apply; see `simulator.physics.physics_of`.
    """

    rows: tuple[int, ...]
    points: tuple[Point, ...]
    jobs: Jobs
    stack: str
    version: str


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
    except (ValueError, OverflowError) as error:
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
    return Batch(tuple(rows), tuple(members), jobs, first.stack.name, first.version)


def batch_rows(rows: Sequence[Mapping[str, str]]) -> tuple[list[Batch], dict[int, str]]:
    """`batch_points` of table rows; a row that asks for what the simulator does not price is refused likewise.

    Raises:
        InvalidCell: a cell that cannot be read.
    """
    points: dict[int, Point] = {}
    refused: dict[int, str] = {}
    for position, row in enumerate(rows):
        try:
            points[position] = parse_point(row)
        except Unsupported as error:
            refused[position] = str(error)
    batches, more = batch_points(points)
    return batches, refused | more
