"""Five problems with a closed form over named parameters with few values each, to hold an adapter against its library.

Sources: Branin, Hartmann-6 and Rosenbrock as in Surjanovic & Bingham, Virtual Library of Simulation Experiments
(sfu.ca/~ssurjano); Rosenbrock in a disk as in Simionescu (2014). The categorical mix is made up here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Point = Mapping[str, Any]

_HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_A = np.array([
    [10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14],
])  # fmt: skip
_HARTMANN_P = 1e-4 * np.array([
    [1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
    [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381],
])  # fmt: skip
_WORTH = {"ring": 0.0, "tree": 0.6, "hybrid": -0.8, "direct": 1.5}


@dataclass(frozen=True)
class Problem:
    """Minimise ``value`` where ``violation`` is at most 0.

    Attributes:
        choices: parameter -> its values, in order.
        unordered: parameters whose values have no order.
    """

    name: str
    choices: Mapping[str, Sequence[Any]]
    value: Callable[[Point], float]
    violation: Callable[[Point], float] = lambda _: 0.0
    unordered: tuple[str, ...] = ()

    def ordered(self, key: str) -> bool:
        """Whether the values of a parameter have an order."""
        return key not in self.unordered


def branin(point: Point) -> float:
    """Branin's function of ``x`` and ``y``; three minima of 0.397887 off the grid."""
    x, y = point["x"], point["y"]
    curve = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann6(point: Point) -> float:
    """Hartmann's function of six variables in [0, 1]; minimum -3.32237 off the grid."""
    x = np.array([point[f"x{number}"] for number in range(6)])
    return -float(_HARTMANN_ALPHA @ np.exp(-(_HARTMANN_A * (x - _HARTMANN_P) ** 2).sum(axis=1)))


def rosenbrock(point: Point) -> float:
    """Rosenbrock's valley in any number of variables; minimum 0 where all are 1."""
    x = list(point.values())
    return sum(100 * (after - before**2) ** 2 + (1 - before) ** 2 for before, after in itertools.pairwise(x))


def categorical_mix(point: Point) -> float:
    """Two unordered parameters, two switches that work only together, and a size; minimum -1.8."""
    together = -1.0 if point["overlap"] and point["chunked"] else 0.3 * (point["overlap"] + point["chunked"])
    size = (math.log2(point["size"]) - 3) ** 2 / 4
    return _WORTH[point["route"]] + together + size + (0.5 if point["format"] is None else 0.0)


def _grid(low: float, high: float, count: int) -> list[float]:
    return [float(value) for value in np.linspace(low, high, count)]


PROBLEMS = (
    Problem("branin", {"x": _grid(-5, 10, 21), "y": _grid(0, 15, 21)}, branin),
    Problem("hartmann6", {f"x{number}": _grid(0, 1, 6) for number in range(6)}, hartmann6),
    Problem("rosenbrock", {f"x{number}": _grid(-2, 2, 9) for number in range(4)}, rosenbrock),
    Problem(
        "categorical mix",
        {
            "route": list(_WORTH),
            "format": [None, "a", "b"],
            "overlap": [False, True],
            "chunked": [False, True],
            "size": [1, 2, 4, 8, 16, 32],
        },
        categorical_mix,
        unordered=("route", "format"),
    ),
    Problem(
        "rosenbrock in a disk",
        {"x": _grid(-1.5, 1.5, 25), "y": _grid(-1.5, 1.5, 25)},
        rosenbrock,
        lambda point: point["x"] ** 2 + point["y"] ** 2 - 2,
    ),
)
