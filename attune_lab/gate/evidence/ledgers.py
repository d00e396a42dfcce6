"""What the two runs were given: batches, labels, positions, learning rates and parameters, exactly equal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attune_lab.gate.evidence.families import Family
from attune_lab.gate.evidence.invariants import RATE, shown
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import Signals, StepSignals

PRINTED = 1e-5
"""Two printed learning rates closer than this are the same; a log shows seven digits."""


def check(baseline: Signals, candidate: Signals) -> list[Check]:
    """The checks of everything that must be equal at every step both record."""
    pairs = [(record, other) for record in baseline.steps if (other := candidate.at(record.step)) is not None]
    return [
        *_missing_steps(baseline, candidate),
        _batches(pairs),
        *_parameters(pairs),
        *_rates(pairs),
    ]


def difference(before: StepSignals, after: StepSignals) -> tuple[str, Family] | None:
    """How the batches of a step differ, the coarsest difference first, and what that points at; None where equal."""
    if before.sequences != after.sequences:
        return f"has {after.sequences} sequences instead of {before.sequences}", Family.BATCH
    if _differ(before.samples, after.samples):
        return "has other input sequences", Family.BATCH
    if before.tokens != after.tokens:
        return f"counts {after.tokens} label tokens instead of {before.tokens}: another loss mask", Family.LABELS
    if _differ(before.labels, after.labels):
        return "has the same inputs with other labels or another loss mask", Family.LABELS
    if _differ(before.positions, after.positions):
        return "has the same inputs with other positions or document borders", Family.POSITIONS
    return None


def _differ(before: str, after: str) -> bool:
    """Whether two hashes differ, both being recorded."""
    return bool(before and after) and before != after


def _missing_steps(baseline: Signals, candidate: Signals) -> Iterator[Check]:
    recorded = {record.step for record in candidate.steps}
    missing = [record.step for record in baseline.steps if record.step not in recorded]
    if missing:
        reason = f"The candidate has no signals of step {shown(map(str, missing))}; record the steps of the baseline."
        yield Check("ledger.steps", "inconclusive", reason)


def _batches(pairs: list[tuple[StepSignals, StepSignals]]) -> Check:
    """Batches, step by step."""
    found = [(before.step, *how) for before, after in pairs if (how := difference(before, after)) is not None]
    if found:
        step, what, family = found[0]
        also = f", as {len(found) - 1} later ones differ too" if len(found) > 1 else ""
        return Check("ledger.batch", "reject", f"The batch of step {step} {what}{also}.", {"step": step}, family)
    if not pairs:
        return Check("ledger.batch", "skipped", "No step was recorded by both runs.")
    return Check("ledger.batch", "pass", f"The batches of all {len(pairs)} recorded steps are equal.")


def _parameters(pairs: list[tuple[StepSignals, StepSignals]]) -> Iterator[Check]:
    """Whether the same parameters have gradients."""
    with_norms = [(before, after) for before, after in pairs if before.grad_norm]
    if not with_norms:
        return
    before, after = with_norms[0]
    lost, new = sorted(before.grad_norm.keys() - after.grad_norm.keys()), after.grad_norm.keys() - before.grad_norm
    if after.grad_norm and (lost or new):
        what = f"lacks {shown(lost)}" if lost else f"has {shown(sorted(new))} besides"
        yield Check("ledger.parameters", "reject", f"The candidate {what}: it trains another model.", {}, Family.FROZEN)


def _rates(pairs: list[tuple[StepSignals, StepSignals]]) -> Iterator[Check]:
    """Logged learning rates."""
    for before, after in pairs:
        old, new = before.logged.get(RATE), after.logged.get(RATE)
        if old is not None and new is not None and not math.isclose(old, new, rel_tol=PRINTED):
            reason = f"The learning rate of step {before.step} is {new:.6g} instead of {old:.6g}."
            yield Check("ledger.learning_rate", "reject", reason, {"step": before.step}, Family.OPTIMIZER)
            return
