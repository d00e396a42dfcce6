"""What finished campaigns showed of a lesson: observations, kept one by one with where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Context:
    """Where a lesson was tried: what decides whether an observation speaks for another place.

    Attributes:
        model: key or name of the model; observations of held-out models are never used.
        traits: what else is known, plain values (``experts``, ``dense``, ``parameters``, ``accelerator``,
            ``n_gpus``, ``nvlink_domain`` …).
    """

    model: str
    traits: Mapping[str, Any] = field(default_factory=dict)


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


class Experience(Protocol):
    """Past campaigns as the agent asks them."""

    def effect(self, lesson: str, edits: Mapping[str, Any], context: Context) -> Effect | None:
        """What is known of the lesson's move ``edits`` (parameter -> new value) in ``context``; None if nothing."""
        ...
