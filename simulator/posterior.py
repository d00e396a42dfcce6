"""What the calibration made of the priors: the constants of a stack, and draws of worlds from them.

``data/posterior.json`` is written by ``attune calibrate``. Shifts are in standard deviations of the priors
(`simulator.constants.Prior.moved`), as are their uncertainties.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.memory_physics import drawn_memory_physics, memory_physics_of
from simulator.physics import PRIORS, SOFTWARE, Physics

Floats = NDArray[np.float64]

_MOST_SHIFT = 10  # the largest of the project's own fit is 3
_MOST_PACE = 4  # the largest is 1.2
_ROUNDING = 1e-3  # of eigenvalues, when entries are written with five digits


@dataclass(frozen=True)
class Posterior:
    """A calibration, as far as predictions need it.

    Attributes:
        constants: names of the fitted constants, K of them.
        shifts: their shifts, shape (K,).
        covariance: of ``shifts``, shape (K, K).
        stacks: further shifts of a stack, by stack and constant.
        versions: pace of each framework version: its step time over that of its stack.
        fitted: data, rows and date of the fit.
    """

    constants: Sequence[str]
    shifts: Floats
    covariance: Floats
    stacks: Mapping[str, Mapping[str, float]]
    versions: Mapping[str, float]
    fitted: Mapping[str, Any]

    @classmethod
    def prior(cls) -> Posterior:
        """What is believed without any measurement of a training step."""
        names = tuple(name for name, prior in PRIORS.items() if prior.sd > 0)
        return cls(names, np.zeros(len(names)), np.eye(len(names)), {}, {}, {})

    @classmethod
    def from_json(cls, content: str | bytes) -> Posterior:
        """The posterior that `to_json` wrote.

        Raises:
            ValueError: the text is no posterior, one of constants this version does not have, or one whose numbers
                no fit leaves; the message says which.
        """
        try:
            held = json.loads(content)
            names = tuple(held["constants"])
            cls._check_names(names)
            shifts, covariance = (np.array(held[key], dtype=np.float64) for key in ("shifts", "covariance"))
            found = cls(names, shifts, covariance, held["stacks"], held["versions"], held["fitted"])
            found._check()
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error
        except (TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"a part of it has another form: {error}") from error
        return found

    @staticmethod
    def _check_names(names: Collection[str]) -> None:
        unknown = sorted(name for name in names if name not in PRIORS or not PRIORS[name].sd)
        if unknown:
            raise ValueError(f"unknown constants: {', '.join(unknown)}")
        if len(set(names)) < len(names):
            raise ValueError("a constant is named twice")

    def _check(self) -> None:
        """Raise ValueError where a figure would be nan, or one that no fit leaves."""
        size = len(self.constants)
        if self.shifts.shape != (size,) or self.covariance.shape != (size, size):
            raise ValueError("shifts and covariance need one entry for each constant")
        for stack, own in self.stacks.items():
            self._check_names(own.keys())
            if not own.keys() <= set(self.constants):
                raise ValueError(f"stack {stack} shifts a constant that is not fitted")
        moved = np.concatenate([self.shifts, *(np.array(list(own.values()), float) for own in self.stacks.values())])
        if not (np.abs(moved) <= _MOST_SHIFT).all():  # as for nan
            raise ValueError(f"a shift is no number or beyond {_MOST_SHIFT} standard deviations of the prior")
        if not all(1 / _MOST_PACE <= pace <= _MOST_PACE for pace in self.versions.values()):
            raise ValueError(f"the pace of a version is not between 1/{_MOST_PACE} and {_MOST_PACE}")
        if not np.isfinite(self.covariance).all() or (size and np.linalg.eigvalsh(self.covariance)[0] < -_ROUNDING):
            raise ValueError("the covariance is none: it has no or negative variances")
        if self.fitted != {} and not (isinstance(self.fitted["rows_fitted"], int) and self.fitted["date"]):
            raise ValueError("'fitted' needs a number of rows and a date")

    def to_json(self) -> str:
        """The content of the file that `load` reads."""
        content = {
            "fitted": dict(self.fitted),
            "constants": list(self.constants),
            "shifts": _rounded(self.shifts),
            "stacks": {stack: dict(shifts) for stack, shifts in self.stacks.items()},
            "versions": dict(self.versions),
            "covariance": _rounded(self.covariance),
        }
        return json.dumps(content, indent=1) + "\n"

    def physics(self, stack: str = "megatron", version: str = "") -> Physics:
        """The constants of a stack; ``version`` is ``framework version``.

        A stack or a version that was not fitted has the general constants.
        """
        own = self.stacks.get(stack, {})
        total = {name: s + own.get(name, 0.0) for name, s in zip(self.constants, self.shifts.tolist(), strict=True)}
        values: dict[str, Any] = {name: PRIORS[name].moved(shift) for name, shift in total.items()}
        return replace(Physics(), memory=memory_physics_of(stack), pace=self.versions.get(version, 1.0), **values)

    def draw(self, random: np.random.Generator, scale: float) -> Physics:
        """Constants as another cluster and stack may have them; ``scale`` multiplies every deviation.

        Uncertainty of the fit and, for constants of software, the differences found between stacks.
        """
        deviation = self._root @ random.normal(size=len(self.constants))
        between = np.array([self.between_stacks if name in SOFTWARE else 0.0 for name in self.constants])
        deviation = np.clip(deviation + between * random.normal(size=between.size), -3, 3)
        shifts = self.shifts + scale * deviation
        values: dict[str, Any] = {
            name: PRIORS[name].moved(shift) for name, shift in zip(self.constants, shifts.tolist(), strict=True)
        }
        return replace(Physics(), memory=drawn_memory_physics(random, scale), **values)

    @cached_property
    def between_stacks(self) -> float:
        """Root mean square of the shifts by which stacks differ; 0 without any."""
        shifts = [shift for own in self.stacks.values() for shift in own.values()]
        return float(np.sqrt(np.mean(np.square(shifts)))) if shifts else 0.0

    @cached_property
    def _root(self) -> Floats:
        values, vectors = np.linalg.eigh(self.covariance)
        root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
        return root


def _rounded(values: Floats) -> Any:
    return np.round(values, 5).tolist()


POSTERIOR = Posterior.from_json(files("simulator").joinpath("data", "posterior.json").read_bytes())
"""The project's own calibration."""

DEFAULT_PHYSICS = POSTERIOR.physics()
"""The engineer's cost model: the constants of Megatron-Core."""
