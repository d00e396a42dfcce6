"""Tries of past campaigns by move and context, and what they say of another one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attune_lab.lessons.context import likeness
from attune_lab.lessons.pooling import UNKNOWN_SD, Floats, expected_spread, failure_chance, pool, predict
from attune_lab.lessons.records import FAILED, LearntCampaign, Observation, as_scalar

SAME_EDITS, SAME_PARAMETERS, SAME_LESSON = 0.4, 0.3, 0.3
"""What moves share: the very same edits, the same parameters with whatever values, the lesson that proposed them. The
likeness of two moves is the sum of what they share, so 1 for one move of one lesson."""

NEAREST = 100
"""So many cells are asked; further ones are less alike and would say no more."""


@dataclass(frozen=True)
class Effect:
    """What past campaigns say of one lever in one context.

    Attributes:
        surprise: mean of log(measured gain) minus log(gain the cost model expected); 0 where nothing is known.
        surprise_sd: standard deviation of that for the next try, estimation error and spread between places.
        failure_chance: probability that a run with the lever fails other than by memory or is rejected by the gate.
        tries: observations behind it.
    """

    surprise: float
    surprise_sd: float
    failure_chance: float
    tries: int


def move_of(edits: Mapping[str, Any]) -> str:
    """Edits (parameter -> new value) as one text, equal for equal edits."""
    return json.dumps({key: as_scalar(value) for key, value in edits.items()}, sort_keys=True)


@dataclass
class _Cell:
    """Tries of one move, proposed by one lesson, in one context."""

    kind: _Kind
    traits: Mapping[str, Any]
    surprises: list[tuple[float, float, str]] = field(default_factory=list)  # value, standard error, place
    tries: int = 0
    failed: int = 0
    judged: int = 0  # runs that did not end out of memory
    refused: int = 0

    def add(self, campaign: LearntCampaign, seen: Observation) -> None:
        self.tries += 1
        if seen.surprise is not None and seen.se is not None:
            self.surprises.append((seen.surprise, seen.se, campaign.place))
        self.failed += seen.outcome in FAILED
        self.judged += seen.outcome not in ("oom", "refused")
        self.refused += seen.outcome == "refused"


class _Kind(NamedTuple):
    """What a move is: three words of which similar moves share some. A move that no lesson names is its own lesson."""

    lesson: str
    parameters: str
    move: str


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SHARES = np.array([SAME_LESSON, SAME_PARAMETERS, SAME_EDITS])


def _kind(lesson: str | None, move: str) -> _Kind:
    return _Kind(move if lesson is None else f"lesson {lesson}", " ".join(sorted(json.loads(move))), move)


class Cells:
    """All cells of the campaigns that count. Answers do not depend on the order in which observations come."""

    def __init__(self, campaigns: Iterable[LearntCampaign]) -> None:
        found: dict[tuple[_Kind, str], _Cell] = {}
        for campaign in campaigns:
            traits = campaign.traits.model_dump()
            context = json.dumps(traits)
            for seen in campaign.observations:
                kind = _kind(seen.lesson, move_of({key: after for key, (_, after) in seen.edits.items()}))
                found.setdefault((kind, context), _Cell(kind, traits)).add(campaign, seen)
        self._cells = [found[key] for key in sorted(found)]
        self._pooled = [
            pool(*zip(*sorted(cell.surprises), strict=True)) if cell.surprises else None for cell in self._cells
        ]
        self._contexts = {text: json.loads(text) for text in sorted({text for _, text in found})}
        names = list(self._contexts)
        self._context = np.array([names.index(text) for _, text in sorted(found)], dtype=np.int64)
        self._apart = np.array([[likeness(a, b) for b in self._contexts.values()] for a in self._contexts.values()])
        counts = [(c.tries, c.failed, c.judged, c.refused) for c in self._cells]
        self._counts = np.array(counts, dtype=np.float64).reshape(-1, 4)
        self._codes: dict[str, int] = {}
        self._kinds = np.array([self._coded(cell.kind) for cell in self._cells], dtype=np.int64).reshape(-1, 3)

    def _coded(self, kind: _Kind) -> list[int]:
        return [self._codes.setdefault(f"{place} {word}", len(self._codes)) for place, word in enumerate(kind)]

    def effect(self, lesson: str | None, move: str, traits: Mapping[str, Any]) -> Effect | None:
        """What is known of a move (see `move_of`) of a lesson where these traits hold; None if nothing."""
        kind = self._coded(_kind(lesson, move))
        to: Floats = (self._kinds == kind) @ _SHARES
        near = np.flatnonzero(to > 0)
        if not len(near):
            return None
        to = to[near] * self._likeness_to(traits)[self._context[near]]
        tries = int(self._counts[near, 0].sum())
        chance = self._failure_chance(near, to, own=self._kinds[near, -1] == kind[-1])
        nearest = [n for n in np.argsort(-to, kind="stable") if self._pooled[near[n]]][:NEAREST]
        if not nearest:
            return Effect(0.0, UNKNOWN_SD, chance, tries)
        cells, to = near[nearest], to[nearest]
        pooled = [known for n in cells if (known := self._pooled[n])]
        means, variances = np.array([p.mean for p in pooled]), np.array([p.mean_sd**2 for p in pooled])
        mean, sd = predict(means, variances, self._likeness_among(cells), to)
        return Effect(mean, math.hypot(sd, expected_spread(pooled, to)), chance, tries)

    def _likeness_to(self, traits: Mapping[str, Any]) -> Floats:
        return np.array([likeness(traits, known) for known in self._contexts.values()])

    def _likeness_among(self, cells: Ints) -> Floats:
        kinds, contexts = self._kinds[cells], self._context[cells]
        shared: Floats = (kinds[:, None, :] == kinds[None, :, :]) @ _SHARES
        among: Floats = shared * self._apart[np.ix_(contexts, contexts)]
        return among

    def _failure_chance(self, near: Ints, to: Floats, own: Bools) -> float:
        """The same edits, whichever lesson made them, are a move's ``own`` tries.

        Settings that the gate refuses speak for themselves alone: the next move of the lesson has other settings.
        """
        failed, judged, refused = (to * self._counts[near, column] for column in (1, 2, 3))
        return failure_chance(
            own=((failed + refused)[own].sum(), (judged + refused)[own].sum()),
            alike=(failed[~own].sum(), judged[~own].sum()),
        )
