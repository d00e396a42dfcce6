"""Does the candidate still train the same model? A paired test of two short curves.

Both runs start from the same weights and read the same batches, so that everything they differ by is the change
itself, or rounding. With d_t = log(candidate loss) - log(baseline loss):

* at step 1 there is no history: d_1 must be inside the rounding of the kernels;
* afterwards rounding drifts apart as a random walk of the weights: |d_t| must stay inside an envelope that grows with
  the step and with how far the model has come, and the mean of d_t near 0, because a fault pushes to one side;
* Adam and clipping hide a wrong gradient scale from the loss: the gradient norms must agree by themselves, at step 1
  and in the median of all steps.

Where loss and gradient norm of step 1 agree to the last digits, no kernel rounds differently and all limits are tight.
Twins of the baseline (runs that differ from it only in legitimate ways) calibrate the limits; with fewer than
`MANY_TWINS` the limits are those of the kind of change. Twenty autocorrelated points are not twenty samples, so no
distribution is assumed: a limit is a multiple of the largest legitimate difference seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attune_lab.gate.bands import BANDS, MASKS, NO_ALLOWANCE, Band, Change
from attune_lab.gate.comparison import (
    MANY_TWINS,
    Comparison,
    Pair,
    compare,
    difference,
    norm_ratio,
    note,
    too_few,
    unusable,
)
from attune_lab.gate.copies import copied, identical, same_seed, without_copies
from attune_lab.gate.curve import Curve, Floats, Ints
from attune_lab.gate.loss_tests import CONFIRM, TWIN_FACTOR, envelope, excess, loss_tests
from attune_lab.gate.norm_tests import label_of
from attune_lab.gate.sequential import Sequential, every_test, sequential
from attune_lab.gate.verdict import Check

__all__ = ["MANY_TWINS", "NO_ALLOWANCE", "Band", "Change", "check", "decide", "limits"]


def check(
    baseline: Curve,
    candidate: Curve,
    twins: Sequence[Curve] = (),
    *,
    change: Change | None = None,
    allowance: Band = NO_ALLOWANCE,
    start: str | None = None,
    masks: str | None = None,
    seeds: Sequence[Pair] = (),
) -> list[Check]:
    """The checks of ``candidate`` against ``baseline``.

    Args:
        baseline, candidate: paired runs: same initial weights, same batches.
        twins: further runs of the baseline, or of legitimate variants of it, from the same start.
        change: the kind of change, when the recipes are known. When it is None, `MANY_TWINS` twins are taken as
            evidence of what is legitimate, and fewer leave the limits of `Change.REORDERED`.
        allowance: how much further the runs may part because the candidate leaves a defect of the baseline.
        start: why the initial weights may differ, None where they are the same.
        masks: why dropout masks may differ, None where they cannot.
        seeds: further pairs of baseline and candidate from other seeds: differences are averaged.
    """
    pair = _prepare(baseline, candidate, twins, seeds, change)
    if isinstance(pair, Check):
        return [pair]
    if doubt := too_few(baseline, candidate, pair):
        return [doubt]
    pair = _allowed(pair, allowance, start, masks)
    if isinstance(pair, Check):
        return [pair]
    found, early = every_test(pair), sequential(pair)
    rejected = {c.name for c in found if c.outcome == "reject"}
    found += [c for c in (*early.checks, *_unbalanced(pair)) if c.name not in rejected]
    found += _doubtful(pair, found)
    others = [identical(pair.base, pair.cand, change), _saved(early)]
    return [*(c for c in others if c is not None), *found]


def _unbalanced(pair: Comparison) -> list[Check]:
    """Rejections of single pairs, where there are several seeds, that no average may make good."""
    pairs = [(pair.base, pair.cand), *pair.seeds] if pair.seeds else []
    alone = [replace(pair, base=base, cand=cand, seeds=()) for base, cand in pairs]
    return [c for each in alone for c in loss_tests(each) if c.outcome == "reject" and excess(c) > CONFIRM]


def _doubtful(pair: Comparison, found: Sequence[Check]) -> list[Check]:
    """A question where losses far outside the limits pass by the word of too few twins."""
    if not 0 < len(pair.twins) < MANY_TWINS or any(c.outcome == "reject" for c in found):
        return []
    bare = [c for c in loss_tests(replace(pair, twins=())) if c.outcome == "reject" and excess(c) > CONFIRM]
    if not bare:
        return []
    reason = f"Only {len(pair.twins)} of {MANY_TWINS} twins, and without them: {bare[0].reason}"
    return [replace(bare[0], name="convergence.twins", outcome="inconclusive", reason=reason)]


def decide(
    baseline: Curve,
    candidate: Curve,
    twins: Sequence[Curve] = (),
    *,
    change: Change | None = None,
    allowance: Band = NO_ALLOWANCE,
    start: str | None = None,
    masks: str | None = None,
) -> Sequential:
    """Whether runs that are still going can be stopped, and why; arguments as for `check`.

    A pair that can never be compared, e.g. because it started from different weights, is decided too.
    """
    pair = _prepare(baseline, candidate, twins, (), change)
    if not isinstance(pair, Check):
        pair = _allowed(pair, allowance, start, masks)
    if isinstance(pair, Check):
        shown = np.intersect1d(baseline.steps, candidate.steps)
        return Sequential(int(shown[-1]), (pair,)) if shown.size else Sequential(None)
    return sequential(pair)


def limits(
    baseline: Curve, candidate: Curve, twins: Sequence[Curve] = (), *, change: Change | None = None
) -> tuple[Ints, Floats] | None:
    """Steps and the limit of the difference there, for a drawing; None where the runs cannot be compared."""
    pair = _prepare(baseline, candidate, twins, (), change)
    return None if isinstance(pair, Check) or not pair.base.steps.size else (pair.base.steps, envelope(pair))


def _prepare(
    baseline: Curve, candidate: Curve, twins: Sequence[Curve], seeds: Sequence[Pair], change: Change | None
) -> Comparison | Check:
    """The two runs side by side, or why they cannot be."""
    twins = without_copies(twins, baseline, candidate)
    everything = [*twins, *(curve for pair in seeds for curve in pair)]
    if doubt := copied(baseline, candidate) or unusable(baseline, candidate, everything):
        return doubt
    pair = compare(baseline, candidate, twins, seeds, change=change)
    return pair if isinstance(pair, Check) else _strange_twin(pair) or same_seed(baseline, candidate, seeds) or pair


def _strange_twin(pair: Comparison) -> Check | None:
    """A twin that can calibrate nothing, being beyond every legitimate difference."""
    widest = BANDS[Change.LOW_PRECISION]
    for number, (base, twin) in enumerate(pair.twins, start=1):
        apart = np.abs(difference(base, twin))
        if apart.max() > TWIN_FACTOR * widest.envelope or (twin.steps[0] == 1 and apart[0] > widest.step_1):
            reason = f"Twin {number} parts from the baseline by {apart.max():.1e}, too far for a legitimate variant"
            return note("twins", "inconclusive", f"{reason}: leave it out or find its fault.")
        for name in base.norms:
            norm = norm_ratio(name, base, twin)
            if norm is not None and abs(norm[0]) > widest.norm + norm[1]:
                reason = f"The {label_of(name)} of twin {number} is {np.exp(norm[0]):.3g} times the baseline's, too far"
                return note(
                    "twins", "inconclusive", f"{reason} for a legitimate variant: leave it out or find its fault."
                )
    return None


def _allowed(pair: Comparison, allowance: Band, start: str | None, masks: str | None) -> Comparison | Check:
    """The comparison with the allowances that hold, or why the start forbids it."""
    if _starts_alike(pair):  # evidently the same weights, and the same masks
        return replace(pair, allowance=allowance)
    if start is not None:
        shown = f"step 1 by {pair.difference[0]:+.1e}" if pair.base.steps[0] == 1 else "unknown at step 1"
        reason = (
            f"{start}; the losses differ ({shown}), and runs from different weights cannot be compared: convert one "
            "seed checkpoint to both layouts and start both runs from it. If they did, say so: --start same."
        )
        return note("start", "inconclusive", reason)
    return replace(pair, allowance=allowance.widened(MASKS) if masks is not None else allowance)


def _starts_alike(pair: Comparison) -> bool:
    """Whether step 1 agrees as only the same weights, batch and dropout masks can make it."""
    if pair.base.steps[0] != 1:
        return False
    return abs(float(pair.difference[0])) <= BANDS[Change.SAME_KERNELS].step_1 + float(pair.printing[0])


def _saved(early: Sequential) -> Check | None:
    """At which step a rejected run could have been stopped."""
    if early.step is None:
        return None
    reason = f"Decided after step {early.step}: a run watched as it goes could have stopped there."
    return Check("convergence.sequential", "pass", reason, {"step": float(early.step)})
