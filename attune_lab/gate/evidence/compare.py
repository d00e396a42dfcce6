"""The checks of two runs' signals, in order of strength."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile

from attune_lab.gate.convergence import NO_ALLOWANCE, Band, Change
from attune_lab.gate.evidence import completeness, dynamics, gradients, invariants, ledgers, probes
from attune_lab.gate.evidence.bands import FLOORS, Floors, Pair, floors_of, has_learnt
from attune_lab.gate.evidence.families import Family
from attune_lab.gate.in_force import effective_differences, known_defects
from attune_lab.gate.start import INITIAL_WEIGHTS, dropout_masks_may_differ, start_may_differ
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import Signals


def check(
    baseline: Signals,
    candidate: Signals,
    twins: Sequence[Signals] = (),
    *,
    change: Change | None = None,
    allowance: Band = NO_ALLOWANCE,
    approvals: Collection[str] = (),
) -> list[Check]:
    """The checks of the candidate's signals, alone and against the baseline's.

    Args:
        baseline, candidate: paired runs: same initial weights, same batches.
        twins: repeats or legitimate variants of the baseline, which widen the limits.
        change: the most invasive kind of change, when known; `Change.LOW_PRECISION` has limits of its own.
        allowance: how much further norms and losses may part because the candidate leaves a defect of the baseline.
        approvals: settings whose change of numerics the user accepts.

    Raises:
        UserError: an approval names nothing.
    """
    # The candidate's own signals may not widen the limits they are held against.
    twins = [twin for twin in twins if twin.steps == baseline.steps or twin.steps != candidate.steps]
    floors = floors_between(baseline, candidate, change).allowing(allowance.norm, allowance.step_1)
    pairs = pairs_of(baseline, candidate, twins)
    checks = [*_settings(baseline, candidate, approvals), *ledgers.check(baseline, candidate)]
    checks += completeness.check(baseline, candidate)
    checks += invariants.check(baseline, candidate)
    checks += probes.figures(baseline, candidate)
    if unlike := _unlike(pairs, baseline, candidate):
        checks.append(unlike)
    else:
        checks += _comparisons(pairs, floors, candidate)
        checks += probes.steps(baseline, candidate, twins, floors, leave_out=_has_learnt(baseline))
    return [*checks, _cost(candidate)]


def floors_between(baseline: Signals, candidate: Signals, change: Change | None = None) -> Floors:
    """The least limits for two runs."""
    floors = FLOORS["another"] if change is Change.LOW_PRECISION else floors_of(baseline.effective, candidate.effective)
    return floors.learnt() if _has_learnt(baseline) else floors


def _has_learnt(baseline: Signals) -> bool:
    return bool(baseline.steps) and has_learnt(baseline.steps[0], baseline.effective)


def same_start(baseline: Signals, candidate: Signals) -> bool:
    """Whether both runs recorded equal weights before one and the same update."""
    pairs = pairs_of(baseline, candidate, ())
    return bool(pairs and pairs[0].baseline.weight_norm) and dynamics.other_start(pairs[0]) is None


def _settings(baseline: Signals, candidate: Signals, approvals: Collection[str]) -> list[Check]:
    """The checks of the settings in force, where both runs recorded them."""
    if not baseline.effective or not candidate.effective:
        return []
    found = effective_differences(baseline.effective, candidate.effective, approvals)
    found += known_defects(baseline, candidate)
    return found or [Check("configuration.in_force", "pass", "The settings in force are equal.")]


def pairs_of(baseline: Signals, candidate: Signals, twins: Sequence[Signals]) -> list[Pair]:
    """The records of every step that both runs have."""
    pairs = []
    for record in baseline.steps:
        if (other := candidate.at(record.step)) is not None:
            seen = [at for twin in twins if (at := twin.at(record.step)) is not None]
            pairs.append(Pair("", f"at step {record.step}", record, other, seen))
    return pairs


def _unlike(pairs: Sequence[Pair], baseline: Signals, candidate: Signals) -> Check | None:
    """Why the tensors of the two runs cannot be compared: other initial weights, or other dropout masks."""
    settings = [{k: v for k, v in s.effective.items() if k != INITIAL_WEIGHTS} for s in (baseline, candidate)]
    parameter = dynamics.other_start(pairs[0]) if pairs else None
    if parameter is not None:
        why = start_may_differ(settings[0], settings[1])
        advice = "start both from one checkpoint"
        reason = (
            f"The weights of {parameter} differ before the first update; {why or 'no setting explains it'}: {advice}."
        )
        return Check("start.weights", "inconclusive" if why else "reject", reason, {}, Family.START)
    if masks := dropout_masks_may_differ(settings[0], settings[1]):
        return Check("start.dropout", "inconclusive", f"{masks}: compare the runs with dropout off.", {}, Family.RNG)
    return None


def _comparisons(pairs: Sequence[Pair], floors: Floors, candidate: Signals) -> Iterator[Check]:
    """The checks of the tensors, up to the first step whose batch differs: from there on everything differs."""
    same = list(takewhile(lambda pair: ledgers.difference(pair.baseline, pair.candidate) is None, pairs))
    if not same:
        yield Check("gradient", "skipped", "No recorded step has equal batches, so gradients were not compared.")
        return
    yield from gradients.check(same[0], floors, candidate.effective)
    yield from dynamics.first_step(same[0], floors)
    yield from gradients.later(same, floors, candidate.effective)
    yield from dynamics.over_time(same, floors)


def _cost(signals: Signals) -> Check:
    """What the probes cost."""
    steps, run = probes.cost(signals), max((record.step for record in signals.steps), default=0)
    share = f", {steps / run:.0%} of the run's {run}" if run else ""
    return Check("cost", "pass", f"The probes cost {steps:.3g} steps{share}.", {"value": steps})
