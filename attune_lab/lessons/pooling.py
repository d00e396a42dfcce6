"""How observations of many places become one expectation for another place.

A *cell* holds the tries of one move, proposed by one lesson, in one context. In place ``j`` (a simulated world, a
cluster) is seen ``y_j = f + d_j + e_j``: the mean ``f`` of the cell, how the place differs, ``d ~ N(0, spread^2)``, and
the error of measurement ``e``. The means of cells are normal around 0 with covariance ``PRIOR_SD^2`` times the likeness
of the cells, so a cell says much of the next one and never everything, however often it was tried.

**Source:** places within a cell: random effects of DerSimonian & Laird, Controlled Clinical Trials 7 (1986) 177, with
the scaled inverse chi-squared prior of Gelman et al., Bayesian Data Analysis, 3rd ed., section 2.6, for the spread.
Between cells: Rasmussen & Williams, Gaussian Processes for Machine Learning, eq. 2.25-2.26.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR_SD = 0.05
"""Before any observation the mean of a cell is 0 give or take this (log): the cost model is good to about 10 % for one
recipe, and the errors of two recipes that differ in one lever are mostly the same error."""

PRIOR_SPREAD, PRIOR_PLACES = 0.03, 4.0
"""The spread between places is taken to be this, as firmly as this many places would show it."""

FAILURE_PRIOR = (0.2, 3.8)
"""Beta prior of the chance to fail: 5 %, worth four tries."""

UNKNOWN_SD = math.hypot(PRIOR_SD, PRIOR_SPREAD)
"""Standard deviation of what the next place shows of a move that was never timed."""


@dataclass(frozen=True)
class Pooled:
    """The mean over places.

    Attributes:
        mean, mean_sd: the mean over places and its standard error.
        spread: standard deviation between places, estimated.
        places: how many there were.
    """

    mean: float
    mean_sd: float
    spread: float
    places: int


def pool(values: Sequence[float], ses: Sequence[float], places: Sequence[Hashable]) -> Pooled:
    """The mean of observations over their places; those of one place, which are not independent, are averaged first.

    Args:
        values, ses: observed log gains and their standard errors, at least one.
        places: where each was observed.
    """
    number = {place: n for n, place in enumerate(sorted(set(places), key=repr))}
    place = np.array([number[p] for p in places])
    precision = np.asarray(ses, dtype=np.float64) ** -2
    total = np.bincount(place, precision)
    y, variance = np.bincount(place, precision * np.asarray(values)) / total, 1 / total
    spread = _spread(y, variance)
    weight = 1 / (variance + spread**2)
    return Pooled(float(weight @ y / weight.sum()), float(weight.sum() ** -0.5), spread, len(y))


def _spread(y: Floats, variance: Floats) -> float:
    """Standard deviation between places: what exceeds the errors of measurement, shrunk to the prior."""
    weight = 1 / (variance + PRIOR_SPREAD**2)
    excess = np.maximum((y - weight @ y / weight.sum()) ** 2 - variance, 0.0)
    return math.sqrt((PRIOR_PLACES * PRIOR_SPREAD**2 + float(excess.sum())) / (PRIOR_PLACES + len(y) - 1))


def predict(means: Floats, variances: Floats, among: Floats, to: Floats) -> tuple[float, float]:
    """Mean and standard deviation of a cell from other cells.

    Args:
        means, variances: shape (n,): of the other cells.
        among: shape (n, n): their likeness.
        to: shape (n,): their likeness to the cell in question, which is 1 to itself.
    """
    solved = np.linalg.solve(PRIOR_SD**2 * among + np.diag(variances), np.column_stack([means, PRIOR_SD**2 * to]))
    mean, explained = PRIOR_SD**2 * to @ solved
    return float(mean), math.sqrt(max(PRIOR_SD**2 - float(explained), 0.0))


def expected_spread(cells: Sequence[Pooled], to: Floats) -> float:
    """The spread between places to expect, shape of ``to``: (n,), the likeness of the cells to the one in question.

    The mean square over the cells, each by its likeness and its number of places; the prior counts like one place.
    """
    weights = to * np.array([cell.places for cell in cells])
    squares = float(weights @ np.array([cell.spread**2 for cell in cells]))
    return math.sqrt((PRIOR_SPREAD**2 + squares) / (1.0 + float(weights.sum())))


def failure_chance(own: Sequence[float] | Floats, alike: Sequence[float] | Floats) -> float:
    """Chance that the next try of a move fails, from how often it and similar moves did.

    Args:
        own: of the move itself, (failed tries, tries), each try by its weight.
        alike: the same of similar moves. They set the prior, which stays worth four tries however many they are.
    """
    worth = sum(FAILURE_PRIOR)
    prior = (FAILURE_PRIOR[0] + alike[0]) / (worth + alike[1])
    return float((prior * worth + own[0]) / (worth + own[1]))
