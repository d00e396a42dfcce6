"""By how much a prediction is off, learnt from few measurements: errors shared by recipes that are alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Value
from baselines.common.pricelist import KIND, Priced

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIME_LEVELS: tuple[tuple[tuple[str, ...], float], ...] = (
    ((), 0.3),
    (KIND, 0.03),
    (LAYOUT, 0.03),
    ((*LAYOUT, "recompute", "dispatcher", "ep_overlap"), 0.015),
    (("dispatcher",), 0.03),
    (("recompute",), 0.02),
    (("ep_overlap",), 0.03),
    (("mbs",), 0.02),
    (("cp",), 0.02),
)
"""Prior spreads of log (measured / predicted) step time: analytic models of training are good to about 10 %, most of
it shared by all recipes of a cluster, the rest by those that share a layout or a way to communicate."""

MEMORY_LEVELS: tuple[tuple[tuple[str, ...], float], ...] = (((), 0.05), (KIND, 0.02), (LAYOUT, 0.02))
"""The same for peak memory: allocator and routing differ between clusters and, less, between layouts."""


FAR_ABOVE = 3.0
"""So many standard deviations above expectation a measurement is set aside."""


class Offsets:
    """Log errors as sums of one part for each level: recipes equal in the level's parameters share that part.

    **Source:** Rasmussen & Williams, Gaussian Processes for Machine Learning, eq. 2.25-2.26, with a covariance that
    is, for each level, its variance where two recipes agree in the level's parameters and nought elsewhere.
    """

    def __init__(
        self, levels: Sequence[tuple[tuple[str, ...], float]], own_sd: float, *, slow_nodes: bool = True
    ) -> None:
        """Before anything is measured.

        Args:
            levels: the parameters of each level, and its spread.
            own_sd: what a recipe's error has of its own, and its measurement.
            slow_nodes: an error far above what all others lead to expect (eq. 5.12) is set aside: that run met a slow
                node.
        """
        self._slow_nodes = slow_nodes
        self._keys = [keys for keys, _ in levels]
        self._variances = np.array([sd**2 for _, sd in levels])
        self._own_sd = own_sd
        self._codes: list[dict[tuple[Value, ...], int]] = [{} for _ in levels]
        self._coded: dict[str, list[int]] = {}
        self._points: Ints = np.empty((0, len(levels)), dtype=np.int64)
        self._inverse: Floats = np.empty((0, 0))
        self._weights: Floats = np.empty(0)

    def fit(self, points: Sequence[Priced], errors: Sequence[float]) -> None:
        """Learn from the log errors of some recipes; replaces what was learnt before."""
        self._points, values = self._code(points), np.asarray(errors, dtype=np.float64)
        shared, own = self._covariance(self._points, self._points), np.full(len(points), self._own_sd**2)
        self._inverse = np.asarray(np.linalg.inv(shared + np.diag(own)))
        surprise = self._inverse @ values / np.sqrt(np.diag(self._inverse))
        if self._slow_nodes and (surprise > FAR_ABOVE).any():
            own[surprise > FAR_ABOVE] *= 100.0
            self._inverse = np.asarray(np.linalg.inv(shared + np.diag(own)))
        self._weights = self._inverse @ values

    def predict(self, points: Sequence[Priced]) -> tuple[Floats, Floats]:
        """Expected log error and its standard deviation, shapes (len(points),)."""
        cross = self._covariance(self._code(points), self._points)
        variance = self._variances.sum() + self._own_sd**2 - np.einsum("ij,jk,ik->i", cross, self._inverse, cross)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, a: Ints, b: Ints) -> Floats:
        covariance: Floats = (a[:, None, :] == b[None, :, :]) @ self._variances
        return covariance

    def _code(self, points: Sequence[Priced]) -> Ints:
        """A number for each recipe and level, equal where the level's parameters are; shape (len(points), levels)."""
        for one in points:
            if one.recipe.digest not in self._coded:
                shared = [tuple(one.values.get(key) for key in keys) for keys in self._keys]
                self._coded[one.recipe.digest] = [
                    codes.setdefault(values, len(codes)) for codes, values in zip(self._codes, shared, strict=True)
                ]
        rows = [self._coded[one.recipe.digest] for one in points]
        return np.array(rows, dtype=np.int64).reshape(len(points), len(self._keys))
