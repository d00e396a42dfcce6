"""What a change did to the step, against what it was expected to do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attune_lab.contracts import RunReport
from attune_lab.diagnosis.signs import Symptom

MODEL_ERROR = 0.10
"""Relative error of a predicted ratio of step times that is nothing strange: the median for published runs that were
held out of the calibration is about that."""

BEYOND_PEAK = 0.80
"""MFU that no training run reaches on real work: large products alone stay below (kernel tables of
ai-dynamo/aiconfigurator@095f58a)."""


def after_change(
    before: RunReport, after: RunReport, *, expected: float | None = None, band: float = 0.01, same_recipe: bool = False
) -> tuple[Symptom, ...]:
    """Symptoms of the step from one run to the next, largest stake first.

    Args:
        before, after: the two runs, both with timed steps, else nothing is said.
        expected: predicted tokens/s of the second over the first, less 1; None where nobody predicted it.
        band: half-width of the noise band of a ratio of two runs.
        same_recipe: nothing was changed on purpose.
    """
    gain = _gain(before, after)
    if gain is None:
        return ()
    found = [
        *_too_fast(gain, after, 0.0 if same_recipe else expected, band),
        *_slower_alone(gain, before, after, band, same_recipe=same_recipe),
        *_no_effect(gain, None if same_recipe else expected, band),
    ]
    return tuple(sorted(found, key=lambda symptom: -symptom.at_stake))


def _gain(before: RunReport, after: RunReport) -> float | None:
    """Tokens per second of the second run over the first, less 1."""
    rates = [run.tokens_per_step / mean for run in (before, after) if (mean := run.mean_step_time_s)]
    if len(rates) < 2 or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        return None
    return rates[1] / rates[0] - 1


def _too_fast(gain: float, after: RunReport, expected: float | None, band: float) -> Iterator[Symptom]:
    """A gain that nothing explains: less work, or work that was not done."""
    if after.mfu is not None and after.mfu > BEYOND_PEAK:
        yield Symptom("suspicious_speedup", f"MFU of {after.mfu:.0%} is more than products alone reach", 1.0)
    elif expected is not None and gain > 3 * band and (1 + gain) / (1 + expected) - 1 > MODEL_ERROR + band:
        why = f"{gain:+.1%} tokens/s where {expected:+.1%} were expected: is it still the same training?"
        yield Symptom("suspicious_speedup", why, 1 - 1 / (1 + gain))


def _slower_alone(
    gain: float, before: RunReport, after: RunReport, band: float, *, same_recipe: bool
) -> Iterator[Symptom]:
    """The same recipe, slower: other software, or a slow node."""
    if not same_recipe or gain >= -3 * band:
        return
    other = sorted(key for key in before.versions.keys() | after.versions.keys()
                   if before.versions.get(key) != after.versions.get(key))  # fmt: skip
    if other:
        yield Symptom("unexplained_regression", f"{-gain:.1%} slower with another {', '.join(other)}", -gain)
    else:
        yield Symptom("straggler", f"the same recipe is {-gain:.1%} slower than before: a slow node?", -gain)


def _no_effect(gain: float, expected: float | None, band: float) -> Iterator[Symptom]:
    """A change that was to bring something and brought nothing."""
    if expected is not None and expected > 3 * band and abs(gain) <= max(band, expected / 5):
        why = f"{gain:+.1%} tokens/s where {expected:+.1%} were expected"
        yield Symptom("no_gain_after_change", why, 1 - 1 / (1 + expected))
