"""Does the candidate still train the same model? A paired test of two short curves.

Both runs start from the same weights and read the same batches, so that everything they differ by is the change
itself, or rounding. With d_t = log(candidate loss) - log(baseline loss):

* at step 1 there is no history: d_1 must be inside the rounding of the kernels;
* afterwards rounding drifts apart as a random walk: |d_t| must stay inside an envelope a t^b, and the mean of
  d_t must stay near 0, because a fault pushes to one side;
* Adam hides a wrong gradient scale from the loss: the gradient norms of step 1 must agree by themselves.

Twins of the baseline (runs that differ from it only in legitimate ways) calibrate the limits; with fewer than
`MANY_TWINS` the limits are those of the kind of change. Twenty autocorrelated points are not twenty samples, so no
distribution is assumed: a limit is a multiple of the largest legitimate difference seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from attune_lab.gate.curve import Curve, Floats, Ints
from attune_lab.gate.verdict import Check

MIN_STEPS = 5
PROBE_STEPS = 20
MANY_TWINS = 3
TWIN_FACTOR = 3.0
SPIKE = 1.1
"""A loss this many times the lowest before it is a spike; batches alone move the loss by a few per cent."""
OPEN_NORM_RATIO = 0.12
"""Relative gradient-norm differences up to this have been reported for bfloat16 layouts without a proven fault
(+9.76 %, NVIDIA-NeMo/Megatron-Bridge#5411): too large to pass, too small to prove anything."""


Pairs = Sequence[tuple[Curve, Curve]]
"""The baseline and a twin, each at the steps they share."""


class Change(StrEnum):
    """The most invasive kind of legitimate change between two recipes."""

    SAME_KERNELS = "same_kernels"  # overlap, buckets, graphs, recomputation, pipeline schedule
    REORDERED = "reordered"  # micro-batch, layout, fused kernels: sums in another order
    DISPATCHER = "dispatcher"  # another MoE dispatch and combine
    LOW_PRECISION = "low_precision"  # approved FP8 or FP4


@dataclass(frozen=True)
class Band:
    """Largest legitimate differences: of the loss (relative) and of gradient norms (log ratio)."""

    step_1: float
    envelope: float  # at step 20 and later; grows as the square root of the step before
    bias: float
    norm: float

    def widened(self, by: Band) -> Band:
        """The band with another's limits added."""
        return Band(self.step_1 + by.step_1, self.envelope + by.envelope, self.bias + by.bias, self.norm + by.norm)


NO_ALLOWANCE = Band(0.0, 0.0, 0.0, 0.0)
CALIBRATED = Band(1e-4, 1e-3, 1e-4, 0.002)
"""Least limits where twins say the rest: no twin shows every legitimate kernel (bfloat16 moves step 1 by 1e-4)."""

BANDS = {
    Change.SAME_KERNELS: Band(1e-5, 1e-3, 1e-4, 0.002),
    Change.REORDERED: Band(2e-4, 2e-3, 3e-4, 0.02),
    Change.DISPATCHER: Band(2e-4, 5e-3, 1e-3, 0.02),
    Change.LOW_PRECISION: Band(5e-3, 1.5e-2, 5e-3, 0.15),
}
"""**Source:** differences of Megatron-LM's recorded test curves (NVIDIA/Megatron-LM@d98e8a64
tests/functional_tests/test_cases): 99 % of pairs that differ in performance settings alone and start from the same
weights stay below 1.3e-4 at step 1, 5e-4 as largest and 2.1e-4 as mean difference; dispatchers 4.8e-3 on average
(#1603); FP8 0.25 % late (arXiv 2412.19437) and 1.8e-2 early (one recorded pair)."""


def check(
    baseline: Curve,
    candidate: Curve,
    twins: Sequence[Curve] = (),
    *,
    change: Change | None = None,
    allowance: Band = NO_ALLOWANCE,
) -> list[Check]:
    """The checks of ``candidate`` against ``baseline``.

    Args:
        baseline, candidate: paired runs: same initial weights, same batches.
        twins: further runs of the baseline, or of legitimate variants of it, from the same start.
        change: the kind of change, when the recipes are known. When it is None, `MANY_TWINS` twins are taken as
            evidence of what is legitimate, and fewer leave the limits of `Change.REORDERED`.
        allowance: how much further the runs may part because the candidate leaves a defect of the baseline.
    """
    # The candidate's own curve may not widen the band it is held against.
    twins = [twin for twin in twins if _is_same_run(twin, baseline) or not _is_same_run(twin, candidate)]
    if unusable := _unusable(baseline, candidate, twins):
        return [unusable]
    spike = _first_spike([baseline, *twins])
    steps = _shared(baseline, candidate, spike)
    if steps.size < MIN_STEPS:
        advice = f"run both for {PROBE_STEPS} steps without a loss spike"
        return [_open("steps", f"Only {steps.size} comparable steps; {advice}.")]
    common = [(twin, shared) for twin in twins if (shared := _shared(baseline, twin, spike)).size]
    pairs = [(baseline.at(shared), twin.at(shared)) for twin, shared in common]
    if strange := _strange_twin(pairs):
        return [strange]
    calibrated = change is None and len(twins) >= MANY_TWINS
    band = (CALIBRATED if calibrated else BANDS[change or Change.REORDERED]).widened(allowance)
    base, cand = baseline.at(steps), candidate.at(steps)
    losses = [test(base, cand, pairs, band) for test in (_step_1, _envelope, _bias)]
    norms = [_norm(name, base, cand, pairs, band) for name in sorted({*base.norms, *cand.norms})]
    others = [_missing(baseline, candidate, spike), _identical(base, cand, change)]
    return [c for c in (*others, *losses, *norms) if c is not None]


def _shared(a: Curve, b: Curve, before: float) -> Ints:
    shared = np.intersect1d(a.steps, b.steps)
    return np.asarray(shared[shared < before])


def _open(name: str, reason: str) -> Check:
    return Check(f"convergence.{name}", "inconclusive", reason)


def _unusable(baseline: Curve, candidate: Curve, twins: Sequence[Curve]) -> Check | None:
    """Why no comparison is possible, or the rejection of a run that diverged."""
    for curve, what in [(baseline, "baseline"), *((t, "twin") for t in twins)]:
        if not np.isfinite(curve.loss).all():
            return _open("finite", f"The {what}'s own loss is not finite; gate against a baseline that trains.")
    broken = candidate.steps[~np.isfinite(candidate.loss)]
    if broken.size:
        reason = f"The candidate's loss is not finite from step {broken[0]}, the baseline's is: do not ship it."
        return Check("convergence.finite", "reject", reason)
    if any((c.loss <= 0).any() for c in (baseline, candidate, *twins)):
        return _open("positive", "A loss of 0 or less has no relative difference; give the language-model loss.")
    return None


def _missing(baseline: Curve, candidate: Curve, before: float) -> Check | None:
    """A candidate without some of the probe's steps has not shown what happened there."""
    wanted = baseline.steps[(baseline.steps <= PROBE_STEPS) & (baseline.steps < before)]
    missing = np.setdiff1d(wanted, candidate.steps)
    if missing.size:
        reason = f"The candidate has no loss at {missing.size} of {wanted.size} steps, first at step {missing[0]}"
        return _open("steps", f"{reason}; run it for as many steps and log all of them.")
    return None


def _identical(base: Curve, cand: Curve, change: Change | None) -> Check | None:
    """A remark on curves that agree in every digit although the change adds in another order."""
    if change in (None, Change.SAME_KERNELS) or not np.array_equal(base.loss, cand.loss):
        return None
    reason = (
        "The losses agree in every digit although the settings change the order of sums: make sure that the "
        "candidate's curve comes from its own run."
    )
    return Check("convergence.identical", "pass", reason)


def _strange_twin(pairs: Pairs) -> Check | None:
    """A twin that can calibrate nothing, being beyond every legitimate difference."""
    widest = BANDS[Change.LOW_PRECISION]
    for number, (base, twin) in enumerate(pairs, start=1):
        moved = np.abs(_difference(base, twin))
        if moved.max() > TWIN_FACTOR * widest.envelope or (twin.steps[0] == 1 and moved[0] > widest.step_1):
            reason = f"Twin {number} parts from the baseline by {moved.max():.1e}, too far for a legitimate variant"
            return _open("twins", f"{reason}: leave it out or find its fault.")
    return None


def _is_same_run(a: Curve, b: Curve) -> bool:
    return np.array_equal(a.steps, b.steps) and np.array_equal(a.loss, b.loss)


def _first_spike(curves: Sequence[Curve]) -> float:
    """First step at which one of the curves jumps above its own past: from there on runs part without a fault."""
    first = np.inf
    for curve in curves:
        lowest = np.minimum.accumulate(curve.loss)
        jumps = np.flatnonzero(curve.loss[1:] > SPIKE * lowest[:-1])
        if jumps.size:
            first = min(first, float(curve.steps[jumps[0] + 1]))
    return first


def _difference(base: Curve, other: Curve) -> Floats:
    return np.log(other.loss) - np.log(base.loss)


def _rounding(base: Curve, other: Curve) -> Floats:
    """Largest relative difference that printing alone can make, shape (T,)."""
    return (base.quantum + other.quantum) / 2 / base.loss


def _step_1(base: Curve, cand: Curve, pairs: Pairs, band: Band) -> Check | None:
    """The first step, where equal weights and batches leave nothing but rounding."""
    if base.steps[0] != 1:
        return None
    difference = float(_difference(base, cand)[0])
    seen = [abs(_difference(b, t)[0]) for b, t in pairs if b.steps[0] == 1]
    limit = max([band.step_1, *(TWIN_FACTOR * d for d in seen)]) + float(_rounding(base, cand)[0])
    figures = {"difference": difference, "limit": limit}
    if abs(difference) > limit:
        reason = (
            f"The losses of step 1 differ by {difference:+.1e}, more than rounding can make ({limit:.1e}): the "
            "candidate computes another loss, or started from other weights or batches."
        )
        return Check("convergence.step_1", "reject", reason, figures)
    reason = f"The losses of step 1 agree ({difference:+.1e}, limit {limit:.1e})."
    return Check("convergence.step_1", "pass", reason, figures)


def fit_envelope(steps: Ints, spread: Floats) -> tuple[float, float]:
    """(a, b) of the power law a t^b, 0 <= b <= 1.5, that covers ``spread`` and follows its growth.

    Args:
        steps: shape (T,), from 1.  spread: largest absolute differences, shape (T,).
    """
    seen = spread > 0
    if not seen.any():
        return 0.0, 0.5
    growth = np.polyfit(np.log(steps[seen]), np.log(spread[seen]), 1)[0] if seen.sum() > 2 else 0.5
    power = float(np.clip(growth, 0.0, 1.5))
    return float((spread / steps**power).max()), power


def _twin_envelope(pairs: Pairs, steps: Ints) -> Floats:
    """Envelope over the differences of twins from the baseline, evaluated at ``steps``."""
    if not pairs:
        return np.zeros(steps.size)
    known = np.unique(np.concatenate([b.steps for b, _ in pairs]))
    spread = np.zeros(known.size)
    for base, twin in pairs:
        index = np.searchsorted(known, base.steps)
        spread[index] = np.maximum(spread[index], np.abs(_difference(base, twin)))
    scale, power = fit_envelope(known, spread)
    return np.asarray(scale * steps.astype(float) ** power)


def _leave_one_out(pairs: Pairs, band: Band) -> float:
    """By how much the farthest twin leaves the envelope of the others, between 1 and 2.

    Above 2 it no longer widens the limit: one odd twin must not open the gate.
    """
    worst = 1.0
    for i, (base, twin) in enumerate(pairs):
        others = np.maximum(
            _twin_envelope([*pairs[:i], *pairs[i + 1 :]], base.steps), _prior(band, base.steps) / TWIN_FACTOR
        )
        worst = max(worst, float((np.abs(_difference(base, twin)) / others).max()))
    return min(worst, 2.0)


def _prior(band: Band, steps: Ints) -> Floats:
    return np.asarray(band.envelope * np.sqrt(np.minimum(steps / 20.0, 1.0)))


def _envelope(base: Curve, cand: Curve, pairs: Pairs, band: Band) -> Check:
    """The largest difference against the growing envelope."""
    factor = TWIN_FACTOR * (_leave_one_out(pairs, band) if len(pairs) >= MANY_TWINS else 1.0)
    rounding = _rounding(base, cand)
    limit = np.maximum(_prior(band, base.steps), factor * _twin_envelope(pairs, base.steps)) + rounding
    ratio = np.abs(_difference(base, cand)) / limit
    worst = int(np.argmax(ratio))
    figures = {
        "step": float(base.steps[worst]), "difference": float(_difference(base, cand)[worst]),
        "limit": float(limit[worst]), "largest": float(np.abs(_difference(base, cand)).max()),
    }  # fmt: skip
    at = f"at step {base.steps[worst]} ({figures['difference']:+.1e}, limit {limit[worst]:.1e})"
    if ratio[worst] > 1:
        reason = f"The loss leaves the band of legitimate differences {at}: revert the change or find its fault."
        return Check("convergence.envelope", "reject", reason, figures)
    if rounding.max() > band.envelope:
        return _open("envelope", "The loss is printed with too few digits to compare; log at least 5 digits.")
    return Check("convergence.envelope", "pass", f"The loss stays inside the band, closest {at}.", figures)


def _bias(base: Curve, cand: Curve, pairs: Pairs, band: Band) -> Check:
    """The mean difference: rounding goes both ways, a fault does not."""
    mean = float(_difference(base, cand).mean())
    seen = [abs(float(_difference(b, t).mean())) for b, t in pairs]
    printing = 1.25 * float(_rounding(base, cand).mean()) / np.sqrt(base.steps.size)  # 3 sigma of a uniform error
    limit = max([band.bias, *(TWIN_FACTOR * m for m in seen)]) + printing
    figures = {"mean": mean, "limit": limit}
    if abs(mean) > limit:
        side = "above" if mean > 0 else "below"
        reason = (
            f"The loss runs {side} the baseline's by {mean:+.1e} on average (limit {limit:.1e}): a one-sided "
            "difference is not rounding."
        )
        return Check("convergence.bias", "reject", reason, figures)
    return Check("convergence.bias", "pass", f"The mean difference is {mean:+.1e} (limit {limit:.1e}).", figures)


def _log_ratio(name: str, base: Curve, other: Curve) -> tuple[float, float] | None:
    """log(other / base) of a norm at the first step both record, and what printing alone can make of it.

    The ratio is infinite when only one of them is 0.
    """
    if name not in base.norms or name not in other.norms:
        return None
    a, b = base.norms[name], other.norms[name]
    both = np.flatnonzero(np.isfinite(a) & ~np.isnan(b))
    if not both.size:
        return None
    at = both[0]
    first, second = float(a[at]), float(b[at])
    if first <= 0 or second <= 0:
        return (0.0 if first == second else np.inf), 0.0
    quanta = sum(float(c.norm_quanta[name][at]) for c in (base, other) if name in c.norm_quanta)
    return float(np.log(second / first)), quanta / 2 / min(first, second)


def _norm(name: str, base: Curve, cand: Curve, pairs: Pairs, band: Band) -> Check:
    """A gradient or update norm at the first recorded step: constant factors that Adam hides from the loss."""
    found = _log_ratio(name, base, cand)
    label, key = name.replace("grad_norm", "gradient norm").replace("_", " "), f"convergence.{name}"
    if found is None:
        return Check(key, "inconclusive", f"Only one of the runs recorded the {label}: log it in both.")
    ratio, printing = found
    seen = [abs(r[0]) for b, t in pairs if (r := _log_ratio(name, b, t)) is not None]
    limit = max([band.norm, *(TWIN_FACTOR * r for r in seen)]) + printing
    proof = limit if len(seen) >= MANY_TWINS else max(limit, OPEN_NORM_RATIO)
    figures = {"ratio": float(np.exp(ratio)), "limit": float(np.exp(limit))}
    if abs(ratio) > proof:
        reason = (
            f"The {label} is {figures['ratio']:.3g} times the baseline's at the first step: gradients are scaled, "
            "lost or counted twice, which Adam hides from the loss."
        )
        return Check(key, "reject", reason, figures)
    if abs(ratio) > limit:
        reason = (
            f"The {label} is {figures['ratio']:.3g} times the baseline's at the first step, too much for rounding "
            "and too little to prove a fault: run three legitimate twins of the baseline."
        )
        return Check(key, "inconclusive", reason, figures)
    agrees = f"The {label} agrees (ratio {figures['ratio']:.4g}, limit {figures['limit']:.4g})."
    return Check(key, "pass", agrees, figures)
