"""Two runs side by side: the steps they share, their twins, other seeds, and what makes them impossible to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attune_lab.gate.bands import (
    BANDS,
    CALIBRATED,
    NO_ALLOWANCE,
    PROBE_STEPS,
    QUIET,
    QUIET_CALIBRATED,
    QUIET_LOSS,
    QUIET_NORM,
    Band,
    Change,
)
from attune_lab.gate.curve import Curve, Floats, Ints
from attune_lab.gate.verdict import Check, Outcome

MIN_STEPS = 5
MIN_REACH = 10
"""A comparison that a spike ends before this step has shown too little."""
MANY_TWINS = 3
SPIKE = 1.1
"""A loss this many times the lowest before it is a spike; batches alone move the loss by a few per cent."""
SPIKES_TOGETHER = 5
"""Where the baseline spikes, the same instability may come this many steps earlier in the candidate."""

Pair = tuple[Curve, Curve]
"""The baseline and another run, each at the steps they share."""


@dataclass(frozen=True)
class Comparison:
    """What the tests are given.

    Attributes:
        base, cand: the runs at the steps they share, before the first spike.
        twins: the baseline and each of its twins.
        seeds: further pairs of baseline and candidate from other seeds, at the steps of ``base``.
        band: limits of the kind of change.
        spike: the step that ended the comparison, infinite where none did.
        allowance: what is added to every limit, from the first step on.
    """

    base: Curve
    cand: Curve
    twins: tuple[Pair, ...]
    seeds: tuple[Pair, ...]
    band: Band
    spike: float = np.inf
    allowance: Band = NO_ALLOWANCE

    @property
    def calibrated(self) -> bool:
        """Whether there are enough twins to know what is legitimate."""
        return len(self.twins) >= MANY_TWINS

    @property
    def luck(self) -> float:
        """By how much averaging over the seeds shrinks what chance makes."""
        return float(1 / np.sqrt(1 + len(self.seeds)))

    @property
    def difference(self) -> Floats:
        """log(candidate) - log(baseline), the mean over the seeds, shape (T,)."""
        pairs = [(self.base, self.cand), *self.seeds]
        return np.asarray(np.mean([difference(base, cand) for base, cand in pairs], axis=0))

    @property
    def printing(self) -> Floats:
        """Largest relative difference that printing alone can make, shape (T,)."""
        pairs = [(self.base, self.cand), *self.seeds]
        return np.asarray(np.mean([rounding(base, cand) for base, cand in pairs], axis=0))

    def until(self, step: int) -> Comparison:
        """The comparison as it stood after ``step``."""
        steps = self.base.steps[self.base.steps <= step]
        known = [(base.steps[base.steps <= step], base, twin) for base, twin in self.twins]
        return replace(
            self,
            base=self.base.at(steps),
            cand=self.cand.at(steps),
            twins=tuple((base.at(s), twin.at(s)) for s, base, twin in known if s.size),
            seeds=tuple((base.at(steps), cand.at(steps)) for base, cand in self.seeds),
        )


def difference(base: Curve, other: Curve) -> Floats:
    """log(other) - log(base) at each step, shape (T,)."""
    return np.asarray(np.log(other.loss) - np.log(base.loss))


def rounding(base: Curve, other: Curve) -> Floats:
    """Largest relative difference of two losses that printing alone can make, shape (T,)."""
    with np.errstate(over="ignore"):  # a loss next to 0: its digits say nothing, which is right
        return np.asarray((base.quantum + other.quantum) / 2 / base.loss)


def note(name: str, outcome: Outcome, reason: str) -> Check:
    """A check of the convergence test without figures."""
    return Check(f"convergence.{name}", outcome, reason)


def unusable(baseline: Curve, candidate: Curve, others: Sequence[Curve]) -> Check | None:
    """Why no comparison is possible, or the rejection of a run that diverged."""
    for curve, what in [(baseline, "baseline"), *((other, "twin") for other in others)]:
        if not np.isfinite(curve.loss).all():
            reason = f"The {what}'s own loss is not finite; gate against a baseline that trains."
            return note("finite", "inconclusive", reason)
    broken = candidate.steps[~np.isfinite(candidate.loss)]
    if broken.size:
        reason = f"The candidate's loss is not finite from step {broken[0]}, the baseline's is: do not ship it."
        return replace(note("finite", "reject", reason), family="divergence")
    if any((c.loss <= 0).any() for c in (baseline, candidate, *others)):
        reason = "A loss of 0 or less has no relative difference; give the language-model loss."
        return note("positive", "inconclusive", reason)
    return None


def compare(
    baseline: Curve, candidate: Curve, twins: Sequence[Curve], seeds: Sequence[Pair], *, change: Change | None
) -> Comparison | Check:
    """The comparison of two usable runs, or the remark that they share nothing."""
    spike = _spike(baseline, candidate, twins)
    steps = shared(baseline, candidate, spike)
    for first, second in seeds:
        steps = np.intersect1d(steps, shared(first, second, min(spike, _spike(first, second, ()))))
    if not steps.size:
        reason = f"The runs share no step before a loss spike; run both for {PROBE_STEPS} steps."
        return note("steps", "inconclusive", reason)
    pairs = tuple((baseline.at(s), twin.at(s)) for twin in twins if (s := shared(baseline, twin, spike)).size)
    band = CALIBRATED if change is None and len(pairs) >= MANY_TWINS else BANDS[change or Change.REORDERED]
    again = tuple((first.at(steps), second.at(steps)) for first, second in seeds)
    pair = Comparison(baseline.at(steps), candidate.at(steps), pairs, again, band, spike)
    quiet = QUIET_CALIBRATED if pair.calibrated else QUIET
    return replace(pair, band=band.least(quiet)) if _quiet(pair) else pair


def shared(a: Curve, b: Curve, before: float) -> Ints:
    """Steps below ``before`` that both runs recorded."""
    steps = np.intersect1d(a.steps, b.steps)
    return np.asarray(steps[steps < before])


def too_few(baseline: Curve, candidate: Curve, pair: Comparison) -> Check | None:
    """Why the steps that both runs show are not enough for a verdict."""
    steps, reach = pair.base.steps, MIN_REACH if np.isfinite(pair.spike) else PROBE_STEPS
    if steps.size < MIN_STEPS or steps[-1] + np.diff(steps).min() <= reach:
        how = "without a loss spike" if np.isfinite(pair.spike) else "and log every step (--log-interval 1)"
        reason = f"Only {steps.size} comparable steps, the last at step {steps[-1]}; run both for {PROBE_STEPS} {how}."
        return note("steps", "inconclusive", reason)
    own = candidate.steps[candidate.steps < pair.spike]
    wanted = baseline.steps[(baseline.steps <= PROBE_STEPS) & (baseline.steps < pair.spike)]
    missing = np.setdiff1d(wanted, own)
    resumed, intervals = own[0] > PROBE_STEPS, np.diff(own[1:][own[1:] <= PROBE_STEPS])
    if missing.size and not resumed and np.unique(intervals).size > 1:
        reason = f"The candidate has no loss at {missing.size} of {wanted.size} steps, first at step {missing[0]}"
        return note("steps", "inconclusive", f"{reason}; run it for as many steps and log all of them.")
    return None


def _spikes(curve: Curve) -> Ints:
    lowest = np.minimum.accumulate(curve.loss)
    return np.asarray(curve.steps[1:][curve.loss[1:] > SPIKE * lowest[:-1]])


def _spike(baseline: Curve, candidate: Curve, twins: Sequence[Curve]) -> float:
    """The step from which on runs part without a fault: the first spike of the baseline or a twin.

    The same spike may come a little earlier in the candidate; one of the candidate alone is its own fault.
    """
    own = [float(steps[0]) for curve in (baseline, *twins) if (steps := _spikes(curve)).size]
    if not own:
        return np.inf
    first = min(own)
    earlier = [float(step) for step in _spikes(candidate) if first - SPIKES_TOGETHER <= step < first]
    return min([first, *earlier])


def _quiet(pair: Comparison) -> bool:
    """Whether loss and gradient norm of step 1 agree so closely that no kernel can round differently.

    An exact loss alone proves nothing: other sums of gradients leave the first loss as it was.
    """
    norm = norm_ratio("grad_norm", pair.base, pair.cand)
    if pair.base.steps[0] != 1 or norm is None or pair.seeds:
        return False
    loss = abs(float(pair.difference[0])) + float(pair.printing[0])
    ratio, printing = norm
    return loss < QUIET_LOSS and abs(ratio) + printing < QUIET_NORM


def norm_series(name: str, base: Curve, other: Curve) -> Iterator[tuple[int, float, float]]:
    """(step, log(other / base), what printing can make of it) of a norm at every step both runs recorded.

    The ratio is infinite where only the first of them is 0, minus infinity where only the second is.
    """
    if name not in base.norms or name not in other.norms:
        return
    quanta = [c.norm_quanta.get(name, np.zeros(c.steps.size)) for c in (base, other)]
    for i, step in enumerate(base.steps):
        first, second = float(base.norms[name][i]), float(other.norms[name][i])
        if np.isnan(second) or not np.isfinite(first):
            continue
        if first <= 0 or second <= 0:
            yield int(step), (0.0 if first == second else -np.inf if second <= 0 else np.inf), 0.0
        else:
            printing = float(quanta[0][i] + quanta[1][i]) / 2 / min(first, second)
            yield int(step), float(np.log(second) - np.log(first)), printing


def norm_ratio(name: str, base: Curve, other: Curve) -> tuple[float, float] | None:
    """log(other / base) of a norm at the first step both record, and what printing can make of it."""
    return next(((ratio, printing) for _, ratio, printing in norm_series(name, base, other)), None)
