"""Where a recipe stands among others: its layout, its other settings, and what its predicted step is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from attune_lab.contracts import Estimate
from attune_lab.enumeration import LEVERS
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPLIT = ("account_embedding", "account_loss")
"""Settings that move layers between stages: with them it is another layout."""


class Priced(Protocol):
    """A recipe with what the cost model expects of it."""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        ...

    @property
    def estimate(self) -> Estimate:
        """What the cost model expects of it."""
        ...


@dataclass(frozen=True)
class Points:
    """Several recipes as arrays, n of them.

    Attributes:
        layouts: equal numbers for equal layouts, shape (n,).
        sizes: log2 of the parallel sizes, shape (n, sizes).
        settings: equal numbers for equal values of a setting, shape (n, settings).
        is_lever: 1 for each setting of `attune_lab.enumeration.LEVERS`, else 0, shape (settings,).
        shares: predicted part of the step by kind of work, shape (n, parts).
        log_times: log of the predicted step time, shape (n,).
        fills: predicted peak as a share of the memory, shape (n,).
    """

    layouts: Ints
    sizes: Floats
    settings: Ints
    is_lever: Ints
    shares: Floats
    log_times: Floats
    fills: Floats


class Coordinates:
    """Reads recipes as points, each recipe once."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._sizes = [key for key in space.parameters if key in LAYOUT]
        self._settings = [key for key in space.parameters if key not in LAYOUT]
        self._codes: dict[tuple[str, object], int] = {}
        self._values: dict[str, Mapping[str, Value]] = {}
        self._rows: dict[str, tuple[int, list[float], list[int]]] = {}
        self._parts: list[str] = []

    def values(self, recipe: Recipe) -> Mapping[str, Value]:
        """The recipe's values of the parameters of the space."""
        if recipe.digest not in self._values:
            self._values[recipe.digest] = self._space.values(recipe)
        return self._values[recipe.digest]

    def of(self, items: Sequence[Priced]) -> Points:
        """``items``, all of which have estimates, as points."""
        rows = [self._row(item.recipe) for item in items]
        estimates = [item.estimate for item in items]
        if estimates and not self._parts:
            self._parts = list(estimates[0].breakdown_s)
        seconds = [[each.breakdown_s.get(part, 0.0) for part in self._parts] for each in estimates]
        times = np.array([each.step_time_s for each in estimates])
        return Points(
            layouts=np.array([layout for layout, _, _ in rows], dtype=np.int64),
            sizes=np.array([sizes for _, sizes, _ in rows], dtype=np.float64).reshape(len(rows), len(self._sizes)),
            settings=np.array([codes for *_, codes in rows], dtype=np.int64).reshape(len(rows), len(self._settings)),
            is_lever=np.array([int(key in LEVERS) for key in self._settings], dtype=np.int64),
            shares=np.array(seconds).reshape(len(rows), len(self._parts)) / times[:, None],
            log_times=np.log(times),
            fills=np.array([each.peak_memory_bytes / each.memory_capacity_bytes for each in estimates]),
        )

    def _row(self, recipe: Recipe) -> tuple[int, list[float], list[int]]:
        if recipe.digest not in self._rows:
            values = self.values(recipe)
            layout = tuple(values.get(key) for key in (*LAYOUT, *SPLIT))
            sizes = [math.log2(max(int(str(values[key] or 1)), 1)) for key in self._sizes]
            settings = [self._code(key, values[key]) for key in self._settings]
            self._rows[recipe.digest] = (self._code("layout", layout), sizes, settings)
        return self._rows[recipe.digest]

    def _code(self, what: str, value: object) -> int:
        return self._codes.setdefault((what, value), len(self._codes))
