"""What the calibration made of the priors: the constants of a stack, and draws of worlds from them.

``data/posterior.json`` is written by ``attune calibrate``. Shifts are in standard deviations of the priors
(`simulator.constants.Prior.moved`), as are their uncertainties.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.memory_physics import drawn_memory_physics, memory_physics_of
from simulator.physics import PRIORS, SOFTWARE, Physics

Floats = NDArray[np.float64]


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
    def load(cls, path: Path) -> Posterior:
        """The posterior in a file.

        Raises:
            ValueError: the file is no posterior, or one of constants this version does not have.
        """
        try:
            return cls._parse(json.loads(path.read_text("utf-8")))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is no calibration ({error}); write one with attune calibrate --out") from error

    @classmethod
    def _parse(cls, held: Mapping[str, Any]) -> Posterior:
        names = tuple(held["constants"])
        unknown = sorted(set(names) - PRIORS.keys())
        if unknown:
            raise ValueError(f"unknown constants: {', '.join(unknown)}")
        shifts, covariance = (np.array(held[key], dtype=np.float64) for key in ("shifts", "covariance"))
        if shifts.shape != (len(names),) or covariance.shape != (len(names), len(names)):
            raise ValueError("shifts and covariance need one entry for each constant")
        return cls(names, shifts, covariance, held["stacks"], held["versions"], held["fitted"])

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


POSTERIOR = Posterior._parse(json.loads(files("simulator").joinpath("data", "posterior.json").read_text("utf-8")))
"""The project's own calibration."""

DEFAULT_PHYSICS = POSTERIOR.physics()
"""The engineer's cost model: the constants of Megatron-Core."""
