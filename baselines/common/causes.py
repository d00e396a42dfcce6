"""Why recipes fail other than for memory, and how likely another one is to fail for the same reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Value
from baselines.common.pricelist import Priced

Trait: TypeAlias = tuple[str, Value]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_TRAITS = 1024
"""More than any space has: some thirty parameters with at most some dozen choices each."""

DETAIL = 0.05
"""Suspicion against a size, a bucket or a variable beside that against a feature being on: defects are tied to what
runs, and seldom to how large it is."""


def traits(values: Mapping[str, Value]) -> list[Trait]:
    """What can be said of a recipe: the value of every parameter, and of every size whether it is more than one."""
    split: list[Trait] = [(f"{key} > 1", int(str(values.get(key) or 1)) > 1) for key in LAYOUT]
    return [*values.items(), *split]


def _is_detail(trait: Trait) -> bool:
    key, value = trait
    return key in LAYOUT or key.startswith("env.") or (isinstance(value, int) and not isinstance(value, bool))


@dataclass(frozen=True)
class _Suspects:
    """What may be the cause of one reason: a trait, a pair of traits, or all that the failed share.

    Attributes:
        shared: columns of the traits that all failed recipes have.
        weights: how likely each pair is, shape (len(shared), len(shared)); single traits on the diagonal; they and
            the weight of all that is shared sum to 1.
    """

    shared: Ints
    weights: Floats

    def chance(self, has: Bools) -> Floats:
        """Probability that each row of traits has the cause."""
        own = has[:, self.shared].astype(np.float64)
        in_part = np.einsum("ij,jk,ik->i", own, self.weights, own, optimize=True)
        return np.asarray(in_part + (1.0 - self.weights.sum()) * own.all(axis=1))


class Causes:
    """One cause for each reason told, taken to be a trait or two that fail together.

    All recipes that failed for a reason have its cause, and no recipe that ran has it. What that leaves is weighed
    alike, single traits as much as pairs, but for details; a little weight stays with all that is shared.
    """

    def __init__(self) -> None:
        self._columns: dict[Trait, int] = {}
        self._rows: dict[str, Bools] = {}
        self._failed: dict[str, Bools] = {}
        self._survivors: list[Bools] = []
        self._suspects: dict[str, _Suspects] | None = {}

    def failed(self, reason: str, one: Priced) -> None:
        """The recipe failed for this reason."""
        (row,) = self._has([one])
        self._failed[reason] = row & self._failed.get(reason, row)
        self._suspects = None

    def survived(self, one: Priced) -> None:
        """The recipe met none of the reasons."""
        self._survivors.append(self._has([one])[0])
        self._suspects = None

    def chance(self, points: Sequence[Priced]) -> Floats:
        """Probability of each recipe not to fail for any reason told so far, shape (len(points),)."""
        chance = np.ones(len(points))
        if self._failed and points:
            has = self._has(points)
            if self._suspects is None:
                self._suspects = {reason: self._weigh(shared) for reason, shared in self._failed.items()}
            for suspects in self._suspects.values():
                chance *= np.clip(1.0 - suspects.chance(has), 0.0, 1.0)
        return chance

    def _weigh(self, failed: Bools) -> _Suspects:
        shared = np.flatnonzero(failed)
        names = list(self._columns)
        prior = np.array([DETAIL if _is_detail(names[column]) else 1.0 for column in shared])
        weights = np.triu(np.outer(prior, prior), 1)
        weights *= prior.sum() / max(weights.sum(), 1e-9)
        weights += np.diag(prior)
        for survivor in self._survivors:
            has = survivor[shared]
            weights[np.outer(has, has)] = 0.0
        return _Suspects(shared, weights / (weights.sum() + DETAIL))

    def _has(self, points: Sequence[Priced]) -> Bools:
        """Which traits each recipe has, shape (len(points), MAX_TRAITS)."""
        for one in points:
            if one.recipe.digest not in self._rows:
                row = np.zeros(MAX_TRAITS, dtype=bool)
                row[[self._columns.setdefault(trait, len(self._columns)) for trait in traits(one.values)]] = True
                self._rows[one.recipe.digest] = row
        return np.stack([self._rows[one.recipe.digest] for one in points])
