"""The whole gate on files a user names."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import UserError
from attune_lab.gate import configuration, convergence, evidence, log_ledger
from attune_lab.gate.convergence import NO_ALLOWANCE, Band, Change
from attune_lab.gate.curve import Curve
from attune_lab.gate.evidence.invariants import LOSS, SUMS
from attune_lab.gate.facts import facts_of
from attune_lab.gate.run_files import Run, read_run, read_twins
from attune_lab.gate.start import dropout_masks_may_differ, start_may_differ
from attune_lab.gate.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec


STARTS = {
    "same": None,
    "differs": "The runs are said to start from different weights",
    "unknown": "It is not known whether both runs start from the same weights",
}
"""What may be said of the initial weights of two runs, and the doubt it leaves."""


def run_gate(
    baseline: str,
    candidate: str,
    twins: Sequence[str] = (),
    approvals: Collection[str] = (),
    *,
    start: str | None = None,
    again: Sequence[tuple[str, str]] = (),
) -> Verdict:
    """The verdict on two runs given as files.

    Args:
        baseline, candidate: a run folder, a log, a CSV, a recipe or ``recipe,log``; the settings are compared when both
            have a recipe (in a run folder: its only ``.sh`` or ``.yaml``), signals when a folder has ``signals.json``.
        twins: repeats or legitimate variants of the baseline, or folders of their run folders.
        approvals: settings whose change of numerics is accepted, e.g. ``fp8``.
        start: a key of `STARTS`; None: what the recipes tell, and the same weights where there are none.
        again: baseline and candidate from other seeds; the differences are averaged.

    Raises:
        UserError: a file cannot be read as what it should be.
    """
    seeds = [(read_run(first).curve, read_run(second).curve) for first, second in again]
    return compare_runs(read_run(baseline), read_run(candidate), read_twins(twins), approvals, start=start, seeds=seeds)


def compare_runs(
    baseline: Run,
    candidate: Run,
    twins: Sequence[Run] = (),
    approvals: Collection[str] = (),
    *,
    start: str | None = None,
    seeds: Sequence[tuple[Curve, Curve]] = (),
) -> Verdict:
    """The verdict on two runs that have been read; arguments as for `run_gate`, ``seeds`` holding curves.

    Raises:
        UserError: no cluster fits both recipes, one has no effective settings, or a further run is a mere recipe.
    """
    further = [*(twin.curve for twin in twins), *(curve for pair in seeds for curve in pair)]
    if not all(curve.steps.size for curve in further):
        raise UserError("a twin or another seed is a recipe that was not run; name it with its log, as recipe,log")
    change, allowance, settings = None, NO_ALLOWANCE, None
    if baseline.recipe is not None and candidate.recipe is not None:
        cluster = _smallest_cluster(baseline.recipe, candidate.recipe)
        reported = candidate.signals.stack if candidate.signals else None
        found = configuration.check(
            baseline.recipe, candidate.recipe, cluster=cluster, versions=reported, approvals=approvals
        )
        change, allowance, settings = found.change, found.allowance, found.checks
    elif baseline.signals is not None and candidate.signals is not None:
        in_force = baseline.signals.effective, candidate.signals.effective
        change, allowance = configuration.change_between(*in_force), configuration.rounding(*in_force)
    if not (baseline.curve.steps.size and candidate.curve.steps.size):
        return judge(settings, None)
    curves = [twin.curve for twin in twins]
    doubt, masks = _doubts(baseline, candidate)
    if start is not None:
        doubt = STARTS[start]
    return judge(
        settings,
        convergence.check(
            baseline.curve,
            candidate.curve,
            curves,
            change=change,
            allowance=allowance,
            start=doubt,
            masks=masks,
            seeds=seeds,
        ),
        [
            *log_ledger.check(baseline.log, candidate.log),
            *_signals(baseline, candidate, twins, change=change, allowance=allowance, approvals=approvals),
        ],
    )


def _doubts(baseline: Run, candidate: Run) -> tuple[str | None, str | None]:
    """Why the initial weights, and why the dropout masks of two runs may differ, as far as their settings tell."""
    before, after = _settings(baseline, candidate), _settings(candidate, baseline)
    if before is None or after is None:
        return None, None
    start, masks = start_may_differ(before, after), dropout_masks_may_differ(before, after)
    if baseline.signals and candidate.signals and evidence.same_start(baseline.signals, candidate.signals):
        start = None
    return start, masks


def _settings(run: Run, other: Run) -> dict[str, Any] | None:
    """What is known of a run's settings and of the other's too: its recipe, and what it recorded itself."""
    known: dict[str, Any] = {}
    if run.recipe is not None and other.recipe is not None:
        known = facts_of(run.recipe, _smallest_cluster(run.recipe, other.recipe))
    if run.signals is not None and other.signals is not None:
        known |= run.signals.effective
    return known or None


def _signals(
    baseline: Run,
    candidate: Run,
    twins: Sequence[Run],
    *,
    change: Change | None,
    allowance: Band,
    approvals: Collection[str],
) -> list[Check]:
    """The checks of what the runs recorded inside, or what is missing for them."""
    if baseline.signals is None and candidate.signals is None:
        return [Check("signals", "skipped", "Neither run recorded signals: losses and logged norms decide alone.")]
    if candidate.signals is None:
        reason = "The baseline recorded signals, the candidate did not: record them in both."
        return [Check("signals", "inconclusive", reason)]
    if baseline.signals is None:
        alone = evidence.check_alone(candidate.signals)
        return [*alone, Check("signals", "skipped", "The baseline recorded no signals to compare with.")]
    if strange := _of_another_run(baseline) or _of_another_run(candidate):
        return [strange]
    if moved := configuration.other_versions("signals", baseline.signals.stack, candidate.signals.stack):
        return [moved, *evidence.check_alone(candidate.signals)]
    others = [twin.signals for twin in twins if twin.signals is not None]
    return evidence.check(
        baseline.signals, candidate.signals, others, change=change, allowance=allowance, approvals=approvals
    )


def _of_another_run(run: Run) -> Check | None:
    """Signals whose printed losses are not those of the log beside them."""
    printed = dict(zip(run.curve.steps.tolist(), zip(run.curve.loss, run.curve.quantum, strict=True), strict=True))
    records = run.signals.steps if run.signals is not None else ()
    for record in records:
        loss, quantum = printed.get(record.step, (math.nan, 0.0))
        logged = record.logged.get(LOSS, record.loss)  # without what was printed, the loss to the limit of sums
        room = quantum + (1e-6 if LOSS in record.logged else SUMS) * abs(loss)
        if record.step in printed and math.isfinite(loss) and not abs(logged - loss) <= room:
            reason = f"The signals of {run.name} have another loss at step {record.step} than its log"
            return Check("signals", "inconclusive", f"{reason}: they are of another run.")
    if records and not any(record.step in printed for record in records):
        reason = f"The log of {run.name} has none of the steps its signals have: give the log of the same run."
        return Check("signals", "inconclusive", reason)
    return None


def _smallest_cluster(*recipes: Recipe) -> ClusterSpec:
    """A cluster every layout fits on: files do not say where they ran, and differences do not depend on it."""
    from simulator.hardware import parse_cluster

    sizes = [1]
    for recipe in recipes:
        tp, pp, cp, ep = (max(int(str(recipe.get(key))), 1) for key in ("tp", "pp", "cp", "ep"))
        etp = int(str(recipe.get("etp") or tp))
        sizes += [tp * pp * cp, etp * ep * pp]
    try:
        return parse_cluster(f"{math.lcm(*sizes)}xH100-SXM5-80GB")
    except ValueError as error:
        raise UserError(f"the layouts of the two recipes fit no cluster both can run on ({error})") from error
