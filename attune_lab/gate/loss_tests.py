"""The tests on two losses: their first step, the largest and the mean difference, and a trend in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attune_lab.gate.bands import STILL_MEAN, Band, growth, moved
from attune_lab.gate.comparison import MANY_TWINS, MIN_STEPS, Comparison, Pair, difference, norm_ratio
from attune_lab.gate.curve import Curve, Floats, Ints
from attune_lab.gate.factors import scale_of
from attune_lab.gate.verdict import Check

TWIN_FACTOR = 3.0
CONFIRM = 3.0
"""A difference within this multiple of its limit is worth a second seed: noise averages out, a fault does not."""
MEAN_STEPS = 25
"""The mean is taken over these first steps: later the runs are far enough apart for long one-sided stretches."""
DOUBT = 0.5
TREND = 4.0
"""A mean difference beyond `DOUBT` of its limit is a question if its trend has this many standard errors."""
COARSE = 0.25
"""Printing may make up this share of the largest limit; beyond, the digits are too few to see a fault."""


def loss_tests(pair: Comparison, *, spent: float = 1.0) -> list[Check]:
    """The checks of the losses.

    Args:
        pair: what to compare.
        spent: factor on the limits of means, above 1 where the runs are not yet complete.
    """
    tests = [_step_1(pair), _envelope(pair), *_mean(pair, spent)]
    return [check for check in tests if check is not None]


def _step_1(pair: Comparison) -> Check | None:
    """The first step, where equal weights and batches leave nothing but rounding."""
    if pair.base.steps[0] != 1:
        return None
    gap = float(pair.difference[0])
    limit = _step_1_limit(pair)
    figures = {"step": 1.0, "difference": gap, "limit": limit}
    if abs(gap) <= limit:
        reason = f"The losses of step 1 agree ({gap:+.1e}, limit {limit:.1e})."
        return Check("convergence.step_1", "pass", reason, figures)
    reason = (
        f"The losses of step 1 differ by {gap:+.1e}, more than rounding can make ({limit:.1e}): the candidate computes "
        f"another loss, or started from other weights or batches."
    )
    scale = scale_of(gap)
    if scale:
        family = f"loss normalisation: {scale} the baseline's loss on the same weights"
    else:
        family = "forward pass or data: mask, labels, positions, normalisation, other weights or samples"
    return Check("convergence.step_1", "reject", reason, figures, family)


def _step_1_limit(pair: Comparison) -> float:
    seen = [abs(float(difference(b, t)[0])) for b, t in pair.twins if b.steps[0] == 1]
    limit = max([pair.band.step_1, *(TWIN_FACTOR * d for d in seen)])
    return (limit + pair.allowance.step_1) * pair.luck + float(pair.printing[0])


def fit_envelope(steps: Ints, spread: Floats) -> tuple[float, float]:
    """(a, b) of the power law a t^b, 0 <= b <= 1.5, that covers ``spread`` and follows its growth.

    Args:
        steps: shape (T,), from 1.  spread: largest absolute differences, shape (T,).
    """
    seen = spread > 0
    if not seen.any():
        return 0.0, 0.5
    slope = np.polyfit(np.log(steps[seen]), np.log(spread[seen]), 1)[0] if seen.sum() > 2 else 0.5
    power = float(np.clip(slope, 0.0, 1.5))
    return float((spread / steps**power).max()), power


def _twin_envelope(pairs: Sequence[Pair], steps: Ints) -> Floats:
    """Envelope over the differences of twins from the baseline, evaluated at ``steps``."""
    if not pairs:
        return np.zeros(steps.size)
    known = np.unique(np.concatenate([b.steps for b, _ in pairs]))
    spread = np.zeros(known.size)
    for base, twin in pairs:
        index = np.searchsorted(known, base.steps)
        spread[index] = np.maximum(spread[index], np.abs(difference(base, twin)))
    scale, power = fit_envelope(known, spread)
    return np.asarray(scale * steps.astype(float) ** power)


def _leave_one_out(pairs: Sequence[Pair], band: Band) -> float:
    """By how much the farthest twin leaves the envelope of the others, between 1 and 2.

    Above 2 it no longer widens the limit: one odd twin must not open the gate.
    """
    worst = 1.0
    for i, (base, twin) in enumerate(pairs):
        others = _twin_envelope([*pairs[:i], *pairs[i + 1 :]], base.steps)
        others = np.maximum(others, _prior(band, base) / TWIN_FACTOR)
        worst = max(worst, float((np.abs(difference(base, twin)) / others).max()))
    return min(worst, 2.0)


def _prior(band: Band, base: Curve) -> Floats:
    """The limit before twins are asked: never below that of step 1."""
    return np.asarray(np.maximum(band.step_1, band.envelope * growth(base)))


def envelope(pair: Comparison) -> Floats:
    """The limit of the difference at each step, without what printing adds; shape (T,)."""
    factor = TWIN_FACTOR * (_leave_one_out(pair.twins, pair.band) if len(pair.twins) >= MANY_TWINS else 1.0)
    limit = np.maximum(_prior(pair.band, pair.base), factor * _twin_envelope(pair.twins, pair.base.steps))
    return np.asarray((limit + pair.allowance.envelope) * pair.luck)


def _envelope(pair: Comparison) -> Check:
    """The largest difference against the growing envelope."""
    limit = envelope(pair)
    gaps, printing = pair.difference, pair.printing
    ratio = np.abs(gaps) / (limit + printing)
    worst = int(np.argmax(ratio))
    step, gap, bound = int(pair.base.steps[worst]), float(gaps[worst]), float(limit[worst] + printing[worst])
    figures = {"step": float(step), "difference": gap, "limit": bound, "largest": float(np.abs(gaps).max())}
    at = f"at step {step} ({gap:+.1e}, limit {bound:.1e})"
    if ratio[worst] > 1:
        first = int(pair.base.steps[np.flatnonzero(ratio > 1)[0]])
        figures["first_step"] = float(first)
        reason = (
            f"The loss leaves the band of legitimate differences at step {first}, farthest {at}: revert the change or "
            f"find its fault{_second_seed(float(ratio[worst]), pair)}."
        )
        return Check("convergence.envelope", "reject", reason, figures, _onset(pair, first))
    if printing.max() > COARSE * limit.max():
        reason = "The loss is printed with too few digits to compare; log at least 5 digits."
        return Check("convergence.envelope", "inconclusive", reason, figures)
    return Check("convergence.envelope", "pass", f"The loss stays inside the band, closest {at}.", figures)


def _mean(pair: Comparison, spent: float) -> list[Check]:
    """The mean difference: rounding goes both ways, a fault does not; and a trend in it, as second vote."""
    pair = pair.until(max(int(pair.base.steps[0]), 1) + MEAN_STEPS - 1)
    if pair.base.steps.size < MIN_STEPS:
        return []
    mean = float(pair.difference.mean())
    seen = [abs(float(difference(b, t).mean())) for b, t in pair.twins]
    printing = 1.25 * float(pair.printing.mean()) / np.sqrt(pair.base.steps.size)  # 3 sigma of a uniform error
    prior = pair.band.bias * float(moved(pair.base, STILL_MEAN)[-1])
    limit = max([prior, *(TWIN_FACTOR * m for m in seen)]) + pair.allowance.bias
    limit = limit * pair.luck * spent + printing
    figures = {"mean": mean, "limit": limit}
    trend = slope_errors(pair.base.steps, pair.difference)
    if abs(mean) > limit:
        side = "above" if mean > 0 else "below"
        reason = (
            f"The loss runs {side} the baseline's by {abs(mean):.1e} on average over {pair.base.steps.size} steps "
            f"(limit {limit:.1e}): a one-sided difference is not rounding{_second_seed(abs(mean) / limit, pair)}."
        )
        return [Check("convergence.bias", "reject", reason, figures, _onset(pair, _first_apart(pair)))]
    passed = Check("convergence.bias", "pass", f"The mean difference is {mean:+.1e} (limit {limit:.1e}).", figures)
    if abs(mean) > DOUBT * limit and abs(trend) > TREND and not pair.calibrated:
        reason = (
            f"The loss drifts {'up' if trend > 0 else 'down'} from the baseline's by {abs(trend):.0f} standard errors, "
            f"with a mean of {mean:+.1e} close to its limit ({limit:.1e}): compare a second seed (--again)."
        )
        return [passed, Check("convergence.drift", "inconclusive", reason, {"trend": trend, "limit": TREND})]
    return [passed]


def slope_errors(steps: Ints, values: Floats) -> float:
    """The trend of a series, in standard errors that allow for neighbours being alike; 0 for less than `MIN_STEPS`.

    **Source:** Newey and West, Econometrica 55 (1987), with the lag floor(4 (T / 100)^(2/9)).
    """
    size = values.size
    if size < MIN_STEPS:
        return 0.0
    time = steps - steps.mean()
    spread = float((time**2).sum())
    slope = float((time * values).sum()) / spread
    score = time * (values - values.mean() - slope * time)
    lag = int(4 * (size / 100) ** (2 / 9))
    variance = float((score**2).sum())
    for k in range(1, lag + 1):
        variance += 2 * (1 - k / (lag + 1)) * float((score[k:] * score[:-k]).sum())
    return slope * spread / np.sqrt(variance) if variance > 0 else 0.0


def excess(check: Check) -> float:
    """|measured| / limit of a check of the losses."""
    return abs(check.measured or 0.0) / check.figures["limit"]


def _second_seed(excess: float, pair: Comparison) -> str:
    return "; a second seed (--again) would confirm it" if excess < CONFIRM and not pair.seeds else ""


def _first_apart(pair: Comparison) -> int:
    """First step with a difference of the size of the mean one."""
    gaps = np.abs(pair.difference)
    return int(pair.base.steps[np.flatnonzero(gaps >= gaps.mean())[0]])


def _onset(pair: Comparison, first: int) -> str:
    """The likely fault family from when the losses part and what the gradients of step 1 said."""
    if pair.base.steps[0] != 1 or first == 1:
        return "forward pass or data: mask, labels, positions, normalisation, other weights or samples"
    norm = norm_ratio("grad_norm", pair.base, pair.cand)
    if norm is not None and abs(norm[0]) > pair.band.norm + norm[1]:
        return "gradients: a reduction that is missing or counted twice, lost or repeated samples"
    before = np.abs(pair.difference)[(pair.base.steps < first) & (pair.base.steps > 1)]
    if first > 3 and before.size and before.max() <= pair.band.step_1:
        return f"an event at step {first - 1}: skipped update, repeated data, schedule, lost optimizer state"
    return "update: learning rate, warm-up, clipping, optimizer settings, stale or rounded weights"
