"""Why runs failed other than for memory: the settings that failed runs share and sound ones do not have together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Value
from attune_lab.wording import value_in_words

Floats = NDArray[np.float64]
Values = Mapping[str, Value]
Trait: TypeAlias = tuple[str, Value]

SWITCH, DETAIL = 5.0, 0.05
"""How suspect a switch that is on, and a size or a variable, is beside a choice among kinds: what breaks a run is most
often a feature, and seldom how large something is."""

MORE = " > 1"

PAIRS = 0.5
"""How suspect all pairs of traits together are beside all single ones."""

ALL = 0.02
"""Suspicion against nothing smaller than everything that the failed runs share."""


class Suspects:
    """For each kind of failure one cause is assumed: one trait, or two together, that every run that failed so had
    and no sound run. What that leaves is weighed alike, but for details.
    """

    def __init__(self) -> None:
        self._sound: list[frozenset[Trait]] = []
        self._shared: dict[str, frozenset[Trait]] = {}
        self._weights: dict[str, tuple[list[Trait], Floats]] = {}

    def __bool__(self) -> bool:
        """Whether anything has failed."""
        return bool(self._weights)

    def failed(self, kind: str, values: Values) -> None:
        """A recipe failed in this way."""
        traits = _traits(values)
        self._shared[kind] = self._shared.get(kind, traits) & traits
        self._weigh()

    def sound(self, values: Values) -> None:
        """A recipe met no failure."""
        self._sound.append(_traits(values))
        self._weigh()

    def chance(self, recipes: Sequence[Values]) -> Floats:
        """Probability that each recipe has no cause of a failure met so far, shape (len(recipes),)."""
        chance = np.ones(len(recipes))
        for traits, weights in self._weights.values():
            has = np.array([_having(trait, recipes) for trait in traits], dtype=np.float64)
            has = has.reshape(len(traits), len(recipes)).T
            partly = ((has @ weights) * has).sum(axis=1)
            chance *= np.clip(1.0 - partly - (1.0 - weights.sum()) * has.all(axis=1), 0.0, 1.0)
        return chance

    def likeliest(self, kind: str) -> str:
        """The most suspect trait or pair of one kind of failure, in words."""
        traits, weights = self._weights[kind]
        if not weights.any():
            return "nothing in particular"
        first, second = np.unravel_index(int(weights.argmax()), weights.shape)
        return " and ".join(map(_in_words, dict.fromkeys((traits[first], traits[second]))))

    def _weigh(self) -> None:
        """Suspicion of each kind of failure: singles on the diagonal, pairs above it."""
        for kind, shared in self._shared.items():
            traits = sorted(shared, key=str)
            prior = np.array([_suspicion(trait) for trait in traits])
            weights = np.triu(np.outer(prior, prior), 1)
            weights *= PAIRS * prior.sum() / max(weights.sum(), 1e-9)
            weights += np.diag(prior)
            for sound in self._sound:
                held = np.array([trait in sound for trait in traits], dtype=bool)
                weights[np.outer(held, held)] = 0.0
            self._weights[kind] = (traits, weights / (weights.sum() + ALL))


def _traits(values: Values) -> frozenset[Trait]:
    """What can be said of a recipe: the value of every setting, and of every size whether it is more than one."""
    split = ((f"{key}{MORE}", _is_more(values.get(key))) for key in LAYOUT)
    return frozenset([*values.items(), *split])


def _having(trait: Trait, recipes: Sequence[Values]) -> list[bool]:
    """Which of the recipes have the trait."""
    key, value = trait
    if key.endswith(MORE):
        size = key.removesuffix(MORE)
        return [_is_more(values.get(size)) == value for values in recipes]
    return [key in values and values[key] == value for values in recipes]


def _is_more(size: Value) -> bool:
    return int(str(size or 1)) > 1


def _in_words(trait: Trait) -> str:
    """``ep_overlap on``, ``tp > 1``, ``tp = 1``."""
    key, value = trait
    if key.endswith(MORE):
        return key if value else f"{key.removesuffix(MORE)} = 1"
    return f"{key} {value_in_words(value)}"


def _suspicion(trait: Trait) -> float:
    key, value = trait
    if key in LAYOUT or key.startswith("env.") or (isinstance(value, int) and not isinstance(value, bool)):
        return DETAIL
    return SWITCH if value is True and not key.endswith(MORE) else 1.0
