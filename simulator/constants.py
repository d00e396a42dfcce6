"""How a constant of the physics is declared: its central value with what is known about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Prior:
    """What is believed of a constant before any training step was looked at.

    Attributes:
        value: central value, in the constant's unit.
        sd: relative standard deviation (of the logarithm); 0 for what is not in doubt.
        what: the effect it stands for.
        source: where the value comes from.
        below: the constant stays below this (1 for a share).
    """

    value: float
    sd: float
    what: str
    source: str
    below: float

    def moved(self, by: float) -> float:
        """The value, ``by`` standard deviations up: on a log scale, or that of log odds for a bounded constant."""
        if math.isinf(self.below):
            return self.value * math.exp(self.sd * by)
        share = self.value / self.below
        odds = share / (1 - share) * math.exp(self.sd / (1 - share) * by)
        return self.below * odds / (1 + odds)

    def slope(self, value: float) -> float:
        """Relative change of a constant that has this value when it moves by one (small) standard deviation."""
        if math.isinf(self.below):
            return self.sd
        return self.sd * (1 - value / self.below) / (1 - self.value / self.below)


def constant(value: float, sd: float, what: str, source: str, *, below: float = math.inf) -> Any:
    """A dataclass field that carries its prior; see `Prior` for the arguments."""
    return field(default=value, metadata={"sd": sd, "what": what, "source": source, "below": below})


def priors(physics: type[Any]) -> Mapping[str, Prior]:
    """The priors of every constant that the dataclass ``physics`` declares, by name."""
    return {
        f.name: Prior(f.default, **f.metadata)
        for f in fields(physics)
        if f.default is not MISSING and "sd" in f.metadata
    }
