"""How far legitimate runs part, signal by signal, and the comparison of one signal with its limit.

A limit is the greater of a floor, set by the precision of the run, and `TWIN_FACTOR` times the largest difference that
twins of the baseline show in the same place. A floor is needed because no set of twins shows every legitimate kernel
and layout; the factor because a handful of twins has no quantile (with n of them, the next one is the farthest with
probability 1 / (n + 1)). No limit is set from a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.signals.schema import StepSignals

TWIN_FACTOR = 3.0
"""For sketches it covers their own scatter too: the squared ratio of two estimates of one error follows F(16, 16),
which exceeds 3 squared with probability 3e-5."""

WIDEST = 4.0
"""Twins widen a floor at most this many times: one odd twin must not open the gate."""

Statistic = Callable[[StepSignals, StepSignals], Mapping[str, float]]
"""Differences of the second record from the first by place (group, parameter, layer, loss); 0 where they agree."""


@dataclass(frozen=True)
class Floors:
    """Least limits of one precision.

    Attributes:
        loss: relative difference of the loss of step 1 and of auxiliary losses.
        norm: log ratio of the gradient norm of a group at step 1; it holds n-fold n - 1 steps later.
        parameter: the same for one parameter.
        error: relative error of the gradient of a group at step 1, from its sketch.
        parameter_error: the same for one parameter.
        update: log ratio of a group's update norm at step 1; it holds n-fold n - 1 steps later.
        load: share of token-expert pairs routed to other experts at step 1.
    """

    loss: float
    norm: float
    parameter: float
    error: float
    parameter_error: float
    update: float
    load: float


FLOORS = {
    "fp32": Floors(1e-5, 2e-4, 1e-3, 2e-3, 5e-3, 2e-3, 2e-3),
    "bf16": Floors(2e-4, 0.008, 0.06, 0.12, 0.2, 0.006, 0.01),
    "fp8": Floors(5e-3, 0.15, 0.3, 0.5, 0.8, 0.05, 0.1),
}
"""By precision: several times what runs of the project's trainer show that differ in layout, micro-batch and attention
kernel."""


def precision(*settings: Mapping[str, Any]) -> str:
    """The coarsest precision of the runs; bfloat16 where nothing is said."""
    if any(values.get("fp8") for values in settings):
        return "fp8"
    return "fp32" if all(values.get("bf16") is False and not values.get("fp16") for values in settings) else "bf16"


@dataclass(frozen=True)
class Pair:
    """The records of one moment in two runs, with those of the twins, and how to call the moment.

    Attributes:
        key: what names of checks begin with: nothing, or e.g. ``probe.ragged.``.
        when: in sentences, e.g. ``at step 1``.
    """

    key: str
    when: str
    baseline: StepSignals
    candidate: StepSignals
    twins: Sequence[StepSignals] = ()


@dataclass(frozen=True)
class Deviation:
    """One place of one signal against its limit."""

    place: str
    value: float
    limit: float

    @property
    def excess(self) -> float:
        """|value| / limit; infinite where the value is no number."""
        return abs(self.value) / self.limit if not math.isnan(self.value) else math.inf


def growth(pair: Pair, first: Pair) -> float:
    """By how much floors widen from the first step on: weights drift apart about as the number of updates."""
    return 1.0 + pair.baseline.step - first.baseline.step


def limit(floor: float, seen: Iterable[float] = ()) -> float:
    """The limit over differences that twins show."""
    finite = (abs(value) for value in seen if math.isfinite(value))
    return min(max([floor, *(TWIN_FACTOR * value for value in finite)]), WIDEST * floor)


def deviations(statistic: Statistic, pair: Pair, floor: float) -> list[Deviation]:
    """Every place of a signal in a pair, the farthest outside its limit first."""
    seen = [statistic(pair.baseline, twin) for twin in pair.twins]
    found = [
        Deviation(place, value, limit(floor, (s[place] for s in seen if place in s)))
        for place, value in statistic(pair.baseline, pair.candidate).items()
    ]
    return sorted(found, key=lambda d: -d.excess)


def log_ratio(before: float, after: float) -> float:
    """log(after / before): 0 where both are 0, infinite where one is, nan where one is no number."""
    if math.isnan(before) or math.isnan(after):
        return math.nan
    if before == after:
        return 0.0
    if after <= 0 or math.isinf(before):
        return -math.inf
    return math.inf if before <= 0 or math.isinf(after) else math.log(after / before)


def as_change(deviation: Deviation) -> str:
    """A log ratio and its limit in per cent, for a sentence."""
    return f"{100 * math.expm1(deviation.value):+.2g} %, limit {100 * math.expm1(deviation.limit):.2g} %"
