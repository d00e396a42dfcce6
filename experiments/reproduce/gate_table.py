"""The gate table: real training on this machine, with real faults and legitimate changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attune_lab.contracts import EnvironmentFault
from attune_lab.report.tables import wilson
from experiments.reproduce.bench import Bench, Section
from experiments.reproduce.claims import Claim

if TYPE_CHECKING:
    from experiments.faults.judging import Judgement, Level

INTRODUCTION = (
    "Every case is trained for real on the project's trainer, on this machine; the panel of 24 is a systematic sample "
    "of the catalogue of faults, since the paper's 24 are not known."
)


def reproduce(bench: Bench) -> Section:
    """The gate table.

    Raises:
        EnvironmentFault: torch is not installed.
    """
    try:
        from experiments.faults.__main__ import run_suite
        from experiments.faults.cache import Cache
        from experiments.faults.report import tables
        from experiments.faults.suite import FAULTS, cases
    except ImportError as error:
        raise EnvironmentFault(f"the gate table trains for real ({error}): pip install 'attune-lab[train]'") from error
    suite = "ci" if bench.quick else "all"
    judged = run_suite(cases(suite), FAULTS, Cache(bench.out / "faults-cache"), workers=bench.workers)
    return Section("The gate on real training", INTRODUCTION, claims(judged), tables(judged), provenance="measured")


def claims(judged: Sequence[Judgement]) -> list[Claim]:
    """The abstract's statements on the gate beside ours."""
    from experiments.faults.suite import panel

    chosen = set(panel())
    legitimate = [j for j in judged if j.case.kind == "legitimate"]
    faults = [j for j in judged if j.case.kind == "fault" and j.case.name in chosen]
    rejected = sum(j.rejected("signals") for j in legitimate)
    found = [
        Claim(
            "legitimate runs rejected",
            "none",
            f"{rejected} of {len(legitimate)}",
            "agrees" if rejected == 0 else "disagrees",
            "Limits are set on legitimate runs alone.",
        )
    ]
    if len(faults) == len(chosen):
        found += [_caught(faults, level) for level in _levels()]
    return found


def _levels() -> Sequence[Level]:
    from experiments.faults.judging import LEVELS

    return LEVELS


def _caught(faults: Sequence[Judgement], level: Level) -> Claim:
    caught = sum(j.rejected(level) for j in faults)
    low, high = (100 * end for end in wilson(caught, len(faults)))
    within = low <= 100 * 16 / 24 <= high
    return Claim(
        f"faulty runs caught, judged by {level}",
        "16 of 24 (20 steps of loss)",
        f"{caught} of {len(faults)} ({low:.0f}–{high:.0f} %)",
        "agrees" if within else "more are caught" if low > 100 * 16 / 24 else "fewer are caught",
        "The faults differ from the paper's; signals beyond the loss see what the loss hides.",
    )
