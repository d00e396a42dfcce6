"""What evidence says of each lesson, for people: effect sizes by context, and where contexts contradict each other."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attune_lab.lessons.cells import move_of
from attune_lab.lessons.pooling import Pooled, pool
from attune_lab.lessons.records import LearntCampaign, Observation

Tries = Sequence[tuple[LearntCampaign, Observation]]

_Z = 1.96
"""Standard errors to either side of an interval, 95 %."""

NO_LESSON = "-"
"""Stands for the lesson of moves that no lesson proposed."""


@dataclass(frozen=True)
class Side:
    """What the tries of one move, or of one lesson, showed in one context.

    Attributes:
        context: model, cluster and provenance, for print.
        outcomes: how many tries ended how.
        expected_pct: mean gain that the cost model expected of the timed tries, percent; None without any.
        gain_pct: mean measured gain over the places, percent; None where nothing was timed.
        interval_pct: its 95 % interval, places as random effects.
        places: worlds or clusters behind it.
    """

    context: str
    outcomes: dict[str, int]
    expected_pct: float | None
    gain_pct: float | None
    interval_pct: tuple[float, float] | None
    places: int

    @property
    def says(self) -> Literal["gain", "loss", "unclear"]:
        """What the interval leaves open."""
        low, high = self.interval_pct or (-1.0, 1.0)
        return "gain" if low > 0 else "loss" if high < 0 else "unclear"


@dataclass(frozen=True)
class MoveSummary:
    """One move of a lesson in every context it was tried in. ``edits``: parameter -> new value, as text."""

    lesson: str
    edits: str
    tries: int
    sides: tuple[Side, ...]

    @property
    def conflict(self) -> bool:
        """Whether it clearly gains in one context and clearly loses in another."""
        return {"gain", "loss"} <= {side.says for side in self.sides}


def summaries(observations: Iterable[tuple[LearntCampaign, Observation]]) -> list[MoveSummary]:
    """Every move that was tried, by lesson, the most tried first."""
    moves: dict[tuple[str, str], list[tuple[LearntCampaign, Observation]]] = defaultdict(list)
    for campaign, seen in observations:
        edits = move_of({key: after for key, (_, after) in seen.edits.items()})
        moves[seen.lesson or NO_LESSON, edits].append((campaign, seen))
    found = [MoveSummary(lesson, edits, len(tries), sides(tries)) for (lesson, edits), tries in moves.items()]
    return sorted(found, key=lambda move: (move.lesson, -move.tries, move.edits))


def sides(tries: Tries) -> tuple[Side, ...]:
    """The tries by context, sorted by its name."""
    contexts: dict[str, list[tuple[LearntCampaign, Observation]]] = defaultdict(list)
    for campaign, seen in tries:
        cluster = f"{campaign.traits.n_gpus}x{campaign.traits.accelerator}"
        contexts[f"{campaign.model} on {cluster}, {campaign.provenance}"].append((campaign, seen))
    return tuple(_side(name, contexts[name]) for name in sorted(contexts))


def _side(context: str, tries: Tries) -> Side:
    outcomes: dict[str, int] = dict(sorted(Counter(seen.outcome for _, seen in tries).items()))
    timed = sorted((s.measured, s.se, c.place) for c, s in tries if s.measured is not None and s.se is not None)
    if not timed:
        return Side(context, outcomes, None, None, None, 0)
    pooled = pool(*zip(*timed, strict=True))
    expected = [seen.expected for _, seen in tries if seen.measured is not None and seen.expected is not None]
    mean = _percent(math.fsum(expected) / len(expected)) if expected else None
    return Side(context, outcomes, mean, _percent(pooled.mean), _interval(pooled), pooled.places)


def _interval(pooled: Pooled) -> tuple[float, float]:
    low, high = (_percent(pooled.mean + side * _Z * pooled.mean_sd) for side in (-1, 1))
    return low, high


def _percent(log_gain: float) -> float:
    return 100 * math.expm1(log_gain)


def observation_row(campaign: LearntCampaign, seen: Observation) -> dict[str, Any]:
    """One observation with where it comes from, flat and JSON-ready."""
    return {
        "campaign": campaign.digest,
        "name": campaign.name,
        "retracted": campaign.standing.retracted,
        "model": campaign.model,
        **{name: value for name, value in campaign.traits.model_dump().items()},
        "tuner": campaign.tuner,
        "seed": campaign.seed,
        "provenance": campaign.provenance,
        "version": campaign.version,
        "stack": campaign.stack,
        **seen.model_dump(mode="json"),
    }
