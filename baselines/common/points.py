"""A task's recipes as points of one fixed product space, and the legal recipe nearest to any point of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from attune_lab.contracts import TuningTask
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe
from attune_lab.recipe.recipe import Value

Point = Mapping[str, Value]
"""A value for every parameter."""


class Points:
    """Points and recipes of one task.

    Attributes:
        choices: parameter -> its values, for the parameters that have more than one.
    """

    def __init__(self, task: TuningTask) -> None:
        self._space = task.space
        self._own = task.space.values(task.baseline)
        self.choices = {key: p.choices for key, p in task.space.parameters.items() if len(p.choices) > 1}

    def point(self, recipe: Recipe) -> dict[str, Value]:
        """The values of ``recipe``, as they take effect."""
        values = self._space.values(recipe)
        return {key: values[key] for key in self.choices}

    def recipe(self, point: Point) -> Recipe | None:
        """The recipe of ``point``, None where it is not legal."""
        return self._space.recipe(point) if self._space.allows(point) else None

    def nearest(self, point: Point) -> Recipe | None:
        """The legal recipe near ``point``: the nearest legal sizes, then every lever that is legal with them.

        None where the nearest sizes are not legal with the baseline's levers.
        """
        kept = self._nearest_sizes(point)
        if not self._space.allows(kept):
            return None
        for key, value in point.items():
            if key not in kept and self._space.allows({**kept, key: value}):
                kept[key] = value
        return self._space.recipe(kept)

    def _nearest_sizes(self, point: Point) -> dict[str, Value]:
        """The legal sizes at the smallest sum of absolute log ratios from the point's; the first of equals."""
        wanted = np.array([float(str(point.get(key, self._own[key]))) for key in self._sizes])
        nearest = self._layouts[np.abs(np.log(self._layouts / wanted)).sum(axis=1).argmin()]
        return {key: int(size) for key, size in zip(self._sizes, nearest, strict=True)}

    @property
    def _sizes(self) -> list[str]:
        return [key for key in LAYOUT if key in self._own]

    @cached_property
    def _layouts(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([[row[key] for key in self._sizes] for row in self._space.enumerate_layouts()], dtype=float)
