"""How far legitimate runs part, signal by signal, and the comparison of one signal with its limit.

A limit is the greater of a floor, set by the precision of the run, and `TWIN_FACTOR` times the largest difference that
twins of the baseline show in the same place. A floor is needed because no set of twins shows every legitimate kernel
and layout; the factor because a handful of twins has no quantile (with n of them, the next one is the farthest with
probability 1 / (n + 1)). No limit is set from a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attune_lab.signals.schema import StepSignals

TWIN_FACTOR = 3.0
"""For sketches it covers their own scatter too: the squared ratio of two estimates of one error follows F(16, 16),
which exceeds 3 squared with probability 3e-5."""

WIDEST = 20.0
"""Twins widen a floor at most this many times: one odd twin must not open the gate."""

Statistic = Callable[[StepSignals, StepSignals], Mapping[str, float]]
"""Differences of the second record from the first by place (group, parameter, layer, loss); 0 where they agree."""


@dataclass(frozen=True)
class Floors:
    """Least limits.

    Attributes:
        loss: relative difference of the loss of step 1.
        norm: log ratio of the gradient norm of a group at step 1.
        parameter: the same for one parameter.
        error: relative error of the gradient of a group at step 1, from its sketch.
        parameter_error: the same for one parameter.
        drift: log ratio of the gradient norm of a group later on, n-fold at step n.
        update: log ratio of the update norm of a group, n-fold at step n.
        load: share of token-expert pairs routed to other experts at step 1.
    """

    loss: float
    norm: float
    parameter: float
    error: float
    parameter_error: float
    drift: float
    update: float
    load: float

    def deeper(self, layers: int) -> Floors:
        """The floors of gradients in a model of so many layers: errors grow by 3 % a layer on the way back.

        **Source:** NVIDIA/Megatron-LM@d98e8a64 tests/functional_tests/python_test_utils/test_optimizer_grads_match.py
        (arXiv 2506.09280, theorem 5.3): the relative error of a parameter's gradient in bfloat16 is below
        4 x 1.03^(L + 1 - l) x 2^-7, which is 0.036 for l = 0 and L = 4.
        """
        return self._widened(DEEPER ** min(max(layers - SHALLOW, 0), DEEPEST))

    def routed(self, moved: float) -> Floors:
        """The floors of gradients when this share of the token-expert pairs went to other experts.

        Rounding moves the tokens that stand between two experts. A share m of moved tokens changes the gradient of an
        expert by about sqrt(2 m) of its length, and its length by about m, either way.
        """
        moved = min(moved, self.load)  # more is a finding of its own and may not excuse others
        return replace(
            self,
            norm=self.norm + 4 * moved,
            parameter=self.parameter + math.sqrt(moved),
            error=self.error + 3 * math.sqrt(moved),
            parameter_error=self.parameter_error + 3 * math.sqrt(moved),
        )

    def learnt(self) -> Floors:
        """The floors of gradients at weights that have learnt something.

        The gradients of single tokens then cancel for the most part, and their rounding does not: after 300 steps of
        the trainer's dense model, legitimate norms differ by up to 1.8 %, gradients by 6 %, parameters by 6 and 12 %.
        """
        return replace(
            self,
            loss=2.5 * self.loss,
            norm=12 * self.norm,
            parameter=4 * self.parameter,
            error=4 * self.error,
            parameter_error=4 * self.parameter_error,
        )

    def allowing(self, norm: float, loss: float) -> Floors:
        """The floors when a known defect of the baseline may part the runs by this much more."""
        return replace(
            self,
            loss=self.loss + loss,
            **{name: getattr(self, name) + norm for name in (*_OF_GRADIENTS, "drift")},
        )

    def _widened(self, factor: float) -> Floors:
        return replace(self, **{name: factor * getattr(self, name) for name in _OF_GRADIENTS})


SHALLOW, DEEPER, DEEPEST = 4, 1.03, 200
GUESS = 0.9
_OF_GRADIENTS = ("norm", "parameter", "error", "parameter_error")

FLOORS = {
    "fp32": Floors(1e-5, 2e-4, 1e-3, 2e-3, 5e-3, 1e-3, 2e-3, 2e-3),
    "bf16": Floors(2e-4, 0.003, 0.03, 0.03, 0.06, 0.01, 0.006, 0.015),
    "fp8": Floors(5e-4, 0.015, 0.06, 0.1, 0.16, 0.02, 0.01, 0.03),
    "another": Floors(5e-3, 0.15, 0.3, 0.5, 0.8, 0.2, 0.05, 0.1),
}
"""By the precision of both runs, for a model of `SHALLOW` layers; ``another`` when an approved change moves it.

Several times the largest differences of legitimate pairs of the project's trainer (4 layers, other layouts,
micro-batches, attention and loss kernels). In float32 these are below 1e-6 on one CPU; the floor leaves room for the
kernels of accelerators."""


def precision(settings: Mapping[str, Any]) -> str:
    """The coarsest precision of a run's matrix products; bfloat16 where nothing is said."""
    if settings.get("fp8") or settings.get("fp4"):
        return "fp8"
    return "fp32" if settings.get("bf16") is False and not settings.get("fp16") else "bf16"


def floors_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> Floors:
    """The floors for two runs with these settings in force."""
    kinds = {precision(before), precision(after)}
    floors = FLOORS[kinds.pop() if len(kinds) == 1 else "another"]
    layers = before.get("num_layers")
    return floors.deeper(layers) if isinstance(layers, int) else floors


def has_learnt(record: StepSignals, settings: Mapping[str, Any]) -> bool:
    """Whether weights have learnt something: the loss is well below that of a guess among the vocabulary."""
    size = settings.get("vocab_size")
    return record.step > 1 or (isinstance(size, int) and size > 1 and record.loss < GUESS * math.log(size))


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
    """By how much a floor widens from the first step on: weights drift apart about as the number of updates."""
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
