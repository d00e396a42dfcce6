"""The measurements next to the jobs they were made with, as arrays over the rows of the data set.

Shape letters:  N = rows of the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.batches import Batch, batch_memory, batch_points, measured_peak, memory_demand
from simulator.calibration.measurements import (
    Outcome,
    load_measurements,
    measured_memory_bytes,
    measured_speed,
    outcome,
)
from simulator.calibration.points import InvalidCell, Unsupported, parse_point
from simulator.metrics import tokens_per_s_per_gpu
from simulator.physics import Physics
from simulator.step import step_seconds

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Observations:
    """Rows with what was measured of them. Arrays have shape (N,).

    Attributes:
        rows: the rows, as text.
        batches: the rows that can be priced, as jobs.
        refused: why the others cannot, by position.
        speed: tokens per second and GPU, nan where not measured or not to be used (quality ``exclude``).
        memory_bytes: measured peak, likewise; nan too where the run ended out of memory, before its peak.
        suspicious: rows whose quality is in doubt.
        outcomes: how each run ended.
    """

    rows: Sequence[Mapping[str, str]]
    batches: Sequence[Batch]
    refused: Mapping[int, str]
    speed: Floats
    memory_bytes: Floats
    suspicious: Bools
    outcomes: Sequence[Outcome]

    def column(self, name: str) -> NDArray[np.str_]:
        """One text column of all rows, shape (N,)."""
        return np.array([row.get(name, "") for row in self.rows])

    @property
    def priced(self) -> Bools:
        """Rows that have a prediction."""
        return ~np.isin(np.arange(len(self.rows)), list(self.refused))


def observe(rows: Sequence[Mapping[str, str]] | None = None) -> Observations:
    """The observations in ``rows``; those of the project's own data set when none are given.

    Raises:
        ValueError: a measured cell that is no number, or an unknown unit.
    """
    rows = load_measurements() if rows is None else rows
    points, refused = {}, {}
    for position, row in enumerate(rows):
        try:
            points[position] = parse_point(row)
        except (Unsupported, InvalidCell) as error:
            refused[position] = str(error)
    batches, unpriced = batch_points(points)
    used = np.array([row.get("quality", "") != "exclude" for row in rows], dtype=bool)
    outcomes = [outcome(row) for row in rows]
    ended = np.array([kind != Outcome.OOM for kind in outcomes], dtype=bool)
    return Observations(
        rows=rows,
        batches=batches,
        refused=refused | unpriced,
        speed=np.where(used, [measured_speed(row) for row in rows], np.nan),
        memory_bytes=np.where(used & ended, [measured_memory_bytes(row) for row in rows], np.nan),
        suspicious=np.array([row.get("quality", "") == "suspicious" for row in rows], dtype=bool),
        outcomes=outcomes,
    )


def predict_speed(batches: Sequence[Batch], size: int, physics: Callable[[str, str], Physics]) -> Floats:
    """The speeds of `predict` alone, at half its cost."""
    speed = np.full(size, np.nan)
    for batch in batches:
        jobs = batch.jobs
        seconds = step_seconds(jobs, physics(batch.stack, batch.version))
        speed[list(batch.rows)] = tokens_per_s_per_gpu(seconds, jobs.gbs, jobs.seq_len, jobs.cluster.n_gpus)
    return speed


@dataclass(frozen=True)
class Predictions:
    """What the simulator says of the rows, shape (N,); nan where a row cannot be priced.

    Attributes:
        speed: tokens per second and GPU.
        memory_bytes: peak, of the statistic that the row's measurement counts.
        demand: memory needed over memory there is.
    """

    speed: Floats
    memory_bytes: Floats
    demand: Floats


def predict(batches: Sequence[Batch], size: int, physics: Callable[[str, str], Physics]) -> Predictions:
    """Predictions for ``batches`` of a table of ``size`` rows; ``physics`` has the constants of a stack and version."""
    speed = predict_speed(batches, size, physics)
    out = Predictions(speed, np.full(size, np.nan), np.full(size, np.nan))
    for batch in batches:
        constants = physics(batch.stack, batch.version)
        memory = batch_memory(batch, constants.memory)
        rows = np.array(batch.rows)
        out.memory_bytes[rows] = measured_peak(batch, memory)
        out.demand[rows] = memory_demand(batch.jobs, memory)
    return out
