"""The tables of a judged suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from attune_lab.report.tables import Table, wilson
from experiments.faults.judging import LEVELS, Judgement, Level
from experiments.faults.plan import Case
from experiments.faults.suite import panel


def tables(judged: Sequence[Judgement]) -> list[Table]:
    """Every table of the report, those without rows left out."""
    faults = [j for j in judged if j.case.kind == "fault"]
    legitimate = [j for j in judged if j.case.kind == "legitimate"]
    chosen = set(panel())
    found = [
        recall("The panel of 24", [j for j in faults if j.case.name in chosen], lambda case: case.name),
        recall("Faults caught, by group", faults, lambda case: case.group),
        recall("Faults caught, by fault", faults, lambda case: case.candidate.fault or case.name),
        misses(faults),
        findings(faults),
        false_alarms(legitimate),
        rejections(legitimate),
        cost(judged),
    ]
    return [table for table in found if table.rows]


def recall(title: str, faults: Sequence[Judgement], key: Callable[[Case], str]) -> Table:
    """How many of the faults are rejected at each level, with Wilson intervals, by ``key`` and in all."""
    groups: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in faults:
        groups[key(judgement.case)].append(judgement)
    rows = [[name, *(_share(group, level) for level in LEVELS)] for name, group in sorted(groups.items())]
    if rows:
        rows.append(["all", *(_share(faults, level) for level in LEVELS)])
    return Table(title, ["", *LEVELS], rows, "Rejected of all, with the Wilson interval at 95 %.")


def misses(faults: Sequence[Judgement]) -> Table:
    """The faults that are not rejected with all signals."""
    missed = [j for j in faults if not j.rejected("signals")]
    rows = [[j.case.name, j.case.group, j.verdicts["signals"].verdict, j.case.note] for j in missed]
    return Table("Faults missed with signals", ["case", "group", "verdict", "why"], rows)


def findings(faults: Sequence[Judgement]) -> Table:
    """What the gate says of each fault it rejects with all signals: its first reason, and the check that gives it."""
    rows = []
    for judgement in faults:
        rejecting = [c for c in judgement.verdicts["signals"].checks if c.outcome == "reject"]
        if rejecting:
            rows.append([judgement.case.name, judgement.case.group, rejecting[0].name, rejecting[0].reason])
    return Table("Faults caught, one by one", ["case", "group", "check", "reason"], rows)


def false_alarms(legitimate: Sequence[Judgement]) -> Table:
    """How many legitimate changes are not passed, by the half of the suite they are in."""
    rows = []
    for half in ("calibration", "held-out"):
        cases = [j for j in legitimate if j.case.half == half]
        counts = [f"{_count(cases, level, 'reject')} / {_count(cases, level, 'inconclusive')}" for level in LEVELS]
        rows.append([half, str(len(cases)), *counts])
    note = (
        "Rejected / inconclusive. Limits were set on the calibration half, which the names of the cases decide, and on "
        "no fault."
    )
    header = ["half", "cases", *LEVELS]
    return Table("Legitimate changes not passed", header, rows if legitimate else [], note)


def rejections(legitimate: Sequence[Judgement]) -> Table:
    """Each legitimate change that is not passed, with the reason."""
    rows = []
    for judgement in legitimate:
        for level in LEVELS:
            verdict = judgement.verdicts[level]
            if verdict.verdict != "pass":
                case = judgement.case
                rows.append([case.name, case.half, level, verdict.verdict, " ".join(verdict.reasons)])
    return Table("Legitimate changes not passed, one by one", ["case", "half", "level", "verdict", "reason"], rows)


def cost(judged: Sequence[Judgement]) -> Table:
    """What the gate costs besides the pair of runs, in steps of one run."""
    rows = []
    for kind in ("fault", "legitimate"):
        costs = [
            (j.cost_steps, j.cost_steps / j.case.candidate.config.train_iters) for j in judged if j.case.kind == kind
        ]
        if costs:
            steps, shares = zip(*costs, strict=True)
            rows.append([kind, f"{sum(steps) / len(steps):.1f}", f"{max(steps):.1f}", f"{100 * max(shares):.0f} %"])
    return Table("Cost of the probes of both runs", ["cases", "mean steps", "most steps", "most of one run"], rows)


def _count(judged: Sequence[Judgement], level: Level, verdict: str) -> int:
    return sum(j.verdicts[level].verdict == verdict for j in judged)


def _share(judged: Sequence[Judgement], level: Level) -> str:
    caught = _count(judged, level, "reject")
    low, high = wilson(caught, len(judged))
    return f"{caught}/{len(judged)} ({100 * low:.0f}–{100 * high:.0f} %)"
