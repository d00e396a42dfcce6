"""Is the candidate's curve its own? A copied log proves nothing about the candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attune_lab.gate.bands import Change
from attune_lab.gate.comparison import note
from attune_lab.gate.curve import Curve
from attune_lab.gate.verdict import Check

PROOF_STEPS = 5
"""So many steps with the same clock are no coincidence: a step's time varies in its fourth digit."""
FOLLOWS = 0.1
"""Three runs that differ by rounding are about equally far from one another; one this much nearer is a copy."""
SHIFTS = (-3, -2, -1, 1, 2, 3)


def copied(baseline: Curve, candidate: Curve) -> Check | None:
    """Why the candidate's curve is a copy of the baseline's, None where nothing proves it."""
    if same_clock(baseline, candidate):
        reason = (
            "Both files print the same dates and step times: the candidate's is a copy of the baseline's run. Give the "
            "log of the candidate's own run."
        )
        return note("copy", "inconclusive", reason)
    for shift in SHIFTS:
        if _agree(baseline, Curve(candidate.steps + shift, candidate.loss, candidate.quantum)):
            reason = (
                f"The candidate's losses are the baseline's, {abs(shift)} steps {'late' if shift < 0 else 'early'}: a "
                "copy, or a run that counts its steps otherwise. Give the candidate's own log, with steps from 1."
            )
            return note("copy", "inconclusive", reason)
    return None


def same_clock(a: Curve, b: Curve) -> bool:
    """Whether two runs printed the same, and not constant, times at every step both printed."""
    times = {step: text for step, text in zip(a.steps.tolist(), a.clock, strict=False) if text}
    pairs = [(times[s], text) for s, text in zip(b.steps.tolist(), b.clock, strict=False) if text and s in times]
    distinct = {text for text, _ in pairs}
    return len(pairs) >= PROOF_STEPS and len(distinct) >= PROOF_STEPS and all(x == y for x, y in pairs)


def identical(base: Curve, cand: Curve, change: Change | None) -> Check | None:
    """A remark on losses that agree in every printed digit although the change adds in another order."""
    if change in (None, Change.SAME_KERNELS) or not _agree(base, cand):
        return None
    reason = (
        "The losses agree in every printed digit although the settings change the order of sums: make sure that the "
        "candidate's curve comes from its own run."
    )
    return note("identical", "pass", reason)


def same_seed(baseline: Curve, candidate: Curve, seeds: Sequence[tuple[Curve, Curve]]) -> Check | None:
    """Why a further pair is of no other seed: it names a run that was given before, or a copy of one."""
    known = [baseline, candidate]
    for number, pair in enumerate(seeds, start=1):
        if copied(*pair) or any(_agree(run, other) for run in pair for other in known):
            reason = f"Pair {number} of another seed has losses that were given before, or is a copy of itself"
            return note("seeds", "inconclusive", f"{reason}: run baseline and candidate with a seed of their own.")
        known += pair
    return None


def without_copies(twins: Sequence[Curve], baseline: Curve, candidate: Curve) -> list[Curve]:
    """The twins that are runs of their own.

    The candidate's curve may not widen the band it is held against, and a copy of the baseline calibrates nothing.
    """
    others = [t for t in twins if not same_clock(t, candidate) and not same_clock(t, baseline)]
    return [t for t in others if _same(t, baseline) or not _follows(t, candidate, baseline)]


def _follows(twin: Curve, candidate: Curve, baseline: Curve) -> bool:
    """Whether a twin is the candidate's run, or that with a little noise, rather than another run of the baseline."""
    steps = np.intersect1d(np.intersect1d(twin.steps, candidate.steps), baseline.steps)
    if not steps.size:
        return False
    losses = twin.at(steps).loss
    to_candidate, to_baseline = (float(np.abs(losses - run.at(steps).loss).sum()) for run in (candidate, baseline))
    return to_candidate <= FOLLOWS * to_baseline


def _same(a: Curve, b: Curve) -> bool:
    return np.array_equal(a.steps, b.steps) and np.array_equal(a.loss, b.loss)


def _agree(a: Curve, b: Curve) -> bool:
    """Whether all shared losses, at least `PROOF_STEPS` different ones, are equal as far as they are printed."""
    steps = np.intersect1d(a.steps, b.steps)
    if steps.size < PROOF_STEPS:
        return False
    first, second = a.at(steps), b.at(steps)
    if np.unique(first.loss).size < PROOF_STEPS:
        return False
    coarse = np.maximum(first.quantum, second.quantum) / 2 * (1 + 1e-6)
    return bool((np.abs(first.loss - second.loss) <= coarse).all())
