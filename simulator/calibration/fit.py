"""The fit of the constants of time to measured steps.

Every constant is a shift from its prior in standard deviations (`simulator.constants.Prior.moved`). A stack may shift
those that belong to software (`simulator.physics.SOFTWARE`), and every framework version has a pace of its own, so
that progress of the software is not mistaken for physics. Residuals are logarithms of predicted over measured speed,
and their loss grows like a logarithm: a row with a wrong label cannot pull.

Shape letters:  N = rows of the data set,  M = rows in a fit,  K = parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.batches import Batch
from simulator.calibration.observations import Observations, predict_speed
from simulator.job import joined
from simulator.physics import PRIORS, SOFTWARE
from simulator.posterior import Posterior

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROW_ERROR = 0.05
"""Error of a row whose layout is known and whose stack is not in doubt, log speed: releases of one framework differ
by 1.3 % (median) and 5 % (90th percentile) on one layout (docs/measurements.md)."""
SUSPICIOUS_ERROR = 0.20
FAMILY_ROWS = 150
"""Rows of one source count as independent up to about so many; its layouts share what the source does not print."""
PACE_SD = 0.05
_STEP = 0.05  # finite difference, in standard deviations of the prior
_ROUNDS = 12
_KNEE = 2.0  # errors of a row from which on its loss grows slowly


@dataclass(frozen=True)
class Layout:
    """What each entry of the parameter vector is, in order: constants, then (stack, constant), then versions."""

    constants: tuple[str, ...]
    stacks: tuple[tuple[str, str], ...]
    versions: tuple[str, ...]

    @property
    def size(self) -> int:
        """K."""
        return len(self.constants) + len(self.stacks) + len(self.versions)

    def shifts(self, posterior: Posterior) -> Floats:
        """Parameters that ``posterior`` stands for, shape (K,); what it does not know is not shifted."""
        general = dict(zip(posterior.constants, posterior.shifts.tolist(), strict=True))
        return np.array(
            [general.get(name, 0.0) for name in self.constants]
            + [posterior.stacks.get(stack, {}).get(name, 0.0) for stack, name in self.stacks]
            + [np.log(posterior.versions.get(version, 1.0)) / PACE_SD for version in self.versions]
        )

    def posterior(self, shifts: Floats, covariance: Floats | None = None) -> Posterior:
        """The constants under ``shifts``, shape (K,), in the form predictions take them."""
        first, last = len(self.constants), len(self.constants) + len(self.stacks)
        stacks: dict[str, dict[str, float]] = defaultdict(dict)
        for (stack, name), shift in zip(self.stacks, shifts[first:last].tolist(), strict=True):
            stacks[stack][name] = shift
        paces = zip(self.versions, np.exp(PACE_SD * shifts[last:]).tolist(), strict=True)
        known = np.zeros((first, first)) if covariance is None else covariance[:first, :first]
        return Posterior(self.constants, shifts[:first], known, stacks, dict(paces), {})


@dataclass(frozen=True)
class Fit:
    """A fit and what validation needs of it.

    Attributes:
        layout: what the parameters are.
        shifts: parameters, shape (K,), in standard deviations of their priors.
        covariance: of ``shifts``, shape (K, K); rows of one source are taken as one observation of what they share.
        rows: rows fitted, positions in the data set, shape (M,).
        residual: log predicted over measured speed, shape (M,).
        jacobian: derivative of the log of the predicted speed, shape (M, K).
        weight: of each row in the normal equations, shape (M,).
    """

    layout: Layout
    shifts: Floats
    covariance: Floats
    rows: NDArray[np.int64]
    residual: Floats
    jacobian: Floats
    weight: Floats

    @property
    def posterior(self) -> Posterior:
        """The fitted constants and their uncertainty."""
        return self.layout.posterior(self.shifts, self.covariance)

    def without(self, held_out: Bools) -> Floats:
        """Parameters of the fit without the rows at ``held_out`` (shape (M,)): one Gauss-Newton step, shape (K,)."""
        kept = ~held_out
        weighted = self.jacobian[kept].T * self.weight[kept]
        normal = weighted @ self.jacobian[kept] + np.eye(self.layout.size)
        return self.shifts - np.linalg.solve(normal, weighted @ self.residual[kept] + self.shifts)


def layout_of(observations: Observations) -> Layout:
    """One parameter for each constant in doubt, each constant of each stack's own, each version."""
    constants = tuple(name for name, prior in PRIORS.items() if prior.sd > 0)
    stacks = sorted({batch.stack for batch in observations.batches} - {"megatron"})
    owned = tuple((stack, name) for stack in stacks for name in constants if name in SOFTWARE)
    return Layout(constants, owned, tuple(sorted({batch.version for batch in observations.batches})))


def fit(
    observations: Observations, use: Bools | None = None, *, start: Posterior | None = None, workers: int = 1
) -> Fit:
    """Constants that explain the measured speeds.

    Args:
        observations: the data.
        use: rows to fit, shape (N,); all priced ones if None.
        start: where to start looking; the priors if None. The answer is the same, sooner.
        workers: processes that share the work.
    """
    from scipy.optimize import least_squares

    layout = layout_of(observations)
    usable = observations.priced & np.isfinite(observations.speed)
    rows = np.flatnonzero(usable if use is None else usable & use)
    scale = np.sqrt(_base_weight(observations, rows))
    model = _Model.of(observations, layout, rows, workers)
    measured = np.log(observations.speed[rows])

    def errors(shifts: Floats) -> Floats:
        return np.concatenate([scale * (model.log_speed(shifts) - measured), shifts])

    def jacobian(shifts: Floats) -> Floats:
        return np.concatenate([scale[:, None] * model.jacobian(shifts), np.eye(layout.size)])

    found = least_squares(
        errors,
        np.zeros(layout.size) if start is None else layout.shifts(start),
        jac=jacobian,
        loss=partial(_loss, rows.size),
        max_nfev=_ROUNDS,
        ftol=1e-4,
    )
    residual: Floats = found.fun[: rows.size] / scale
    slope = model.jacobian(found.x)  # the search's own is weighted by the loss
    weight: Floats = scale**2 / (1 + (scale * residual / _KNEE) ** 2)
    covariance = _covariance(observations.column("source_id")[rows], slope, weight, residual)
    return Fit(layout, found.x, covariance, rows, residual, slope, weight)


def _loss(rows: int, squares: Floats) -> Floats:
    """Cauchy's loss for the rows, the square for the priors behind them; with both derivatives, shape (3, M + K)."""
    tail = 1 + squares[:rows] / _KNEE**2
    loss = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
    loss[:, :rows] = _KNEE**2 * np.log(tail), 1 / tail, -1 / (_KNEE * tail) ** 2
    return loss


def _base_weight(observations: Observations, rows: NDArray[np.int64]) -> Floats:
    """1 / variance of each row, less where many rows of one source say the same, shape (M,)."""
    error = np.where(observations.suspicious[rows], SUSPICIOUS_ERROR, ROW_ERROR)
    _, source, count = np.unique(observations.column("source_id")[rows], return_inverse=True, return_counts=True)
    crowd: Floats = 1 + count[source] / FAMILY_ROWS
    return 1 / (error**2 * crowd)


def _covariance(sources: NDArray[np.str_], jacobian: Floats, weight: Floats, residual: Floats) -> Floats:
    """Sandwich of the normal matrix around the scores of whole sources plus the priors', shape (K, K).

    **Source:** cluster-robust covariance, Liang and Zeger, Biometrika 73 (1986).
    """
    size = jacobian.shape[1]
    bread = np.linalg.inv(jacobian.T * weight @ jacobian + np.eye(size))
    scores = jacobian * (weight * residual)[:, None]
    meat = np.eye(size)
    for source in np.unique(sources):
        score = scores[sources == source].sum(axis=0)
        meat += np.outer(score, score)
    covariance: Floats = bread @ meat @ bread
    return covariance


@dataclass(frozen=True)
class _Model:
    """Log speed of the fitted rows as a function of the parameters, with its derivative.

    Attributes:
        layout: what the parameters are.
        batches: those that hold fitted rows, one for each model, cluster and stack.
        size: rows of the data set.
        rows: fitted rows, shape (M,).
        stack, version: of each fitted row, shapes (M,).
        workers: processes that share a derivative.
    """

    layout: Layout
    batches: Sequence[Batch]
    size: int
    rows: NDArray[np.int64]
    stack: NDArray[np.str_]
    version: NDArray[np.str_]
    workers: int

    @classmethod
    def of(cls, observations: Observations, layout: Layout, rows: NDArray[np.int64], workers: int) -> _Model:
        """The model of these rows of ``observations``."""
        wanted = set(rows.tolist())
        versions: dict[int, str] = {}
        stacks: dict[int, str] = {}
        groups: dict[Any, list[Batch]] = defaultdict(list)
        for batch in observations.batches:
            if not wanted.isdisjoint(batch.rows):
                groups[batch.jobs.model, batch.jobs.cluster, batch.stack].append(batch)
                versions |= dict.fromkeys(batch.rows, batch.version)
                stacks |= dict.fromkeys(batch.rows, batch.stack)
        stack, version = (np.array([owner[row] for row in rows.tolist()]) for owner in (stacks, versions))
        merged = [_regardless_of_version(batches) for batches in groups.values()]
        return cls(layout, merged, len(observations.rows), rows, stack, version, workers)

    def log_speed(self, shifts: Floats) -> Floats:
        """Shape (M,)."""
        posterior = self.layout.posterior(shifts)
        speed = predict_speed(self.batches, self.size, posterior.physics)[self.rows]
        paces = np.array([posterior.versions[version] for version in self.version.tolist()])
        log_speed: Floats = np.log(speed / paces)
        return log_speed

    def jacobian(self, shifts: Floats) -> Floats:
        """Derivative of `log_speed` by forward differences, shape (M, K).

        A stack's shift of a constant acts on its own rows exactly as the general shift does, so one evaluation a
        constant serves all stacks; a version's pace divides the speed.
        """
        constants, last = len(self.layout.constants), len(self.layout.constants) + len(self.layout.stacks)
        moved = np.stack([shifts, *(shifts + _STEP * np.eye(constants, shifts.size))])
        with ProcessPoolExecutor(self.workers) as pool:
            here, *there = pool.map(self.log_speed, moved, chunksize=-(-len(moved) // self.workers))
        out = np.zeros((self.rows.size, self.layout.size))
        out[:, :constants] = (np.stack(there, axis=1) - here[:, None]) / _STEP
        for column, (owner, name) in enumerate(self.layout.stacks, constants):
            out[:, column] = out[:, self.layout.constants.index(name)] * (self.stack == owner)
        for column, name in enumerate(self.layout.versions, last):
            out[:, column] = -PACE_SD * (self.version == name)
        return out


def _regardless_of_version(batches: Sequence[Batch]) -> Batch:
    """Batches of one model, cluster and stack as one, at the pace of no version: a third fewer to simulate."""
    rows = tuple(row for batch in batches for row in batch.rows)
    kinds = tuple(kind for batch in batches for kind in batch.statistics)
    stated = tuple(flag for batch in batches for flag in batch.recompute_stated)
    jobs = joined([batch.jobs for batch in batches])
    return replace(batches[0], rows=rows, jobs=jobs, version="", statistics=kinds, recompute_stated=stated)


def select(observations: Observations, sources: Sequence[str]) -> Bools:
    """Rows of these sources, shape (N,)."""
    return np.isin(observations.column("source_id"), list(sources))
