"""`attune gate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attune_lab.cli.output import Json, emit, indented, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attune_lab.gate.verdict import Verdict

WIDE = 110
"""Columns of a terminal from which a line of the table has room for a finding."""

COLOURS = {"reject": "red", "inconclusive": "yellow", "pass": "green", "skipped": "dim"}


class Start(StrEnum):
    """What the user may say of the initial weights."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


def gate(
    baseline: Annotated[
        str,
        typer.Option(
            help="Run folder, Megatron-LM log, CSV (step,lm_loss[,grad_norm]), recipe,log, or a recipe not yet run.",
            show_default=False,
        ),
    ],
    candidate: Annotated[str, typer.Option(help="The same for the run to judge.", show_default=False)],
    twin: Annotated[
        list[str] | None,
        typer.Option(help="A legitimate repeat or variant of the baseline, or a folder of run folders; repeatable."),
    ] = None,
    approve: Annotated[
        list[str] | None, typer.Option(help="A numerics change you accept, e.g. fp8; repeatable.")
    ] = None,
    start: Annotated[
        Start | None,
        typer.Option(help="Whether both start from the same weights; without it as the recipes tell, else the same."),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="Baseline=candidate of another seed; repeatable. The differences are averaged."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write the evidence, with curves, as a page to this file.", dir_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge whether a candidate still trains the same model as the baseline.

    Exit code 0 for pass, 1 for reject or inconclusive.

    Example: attune gate --baseline base.csv --candidate new.csv --twin base-again.csv
    """
    from attune_lab.gate.run import compare_runs
    from attune_lab.gate.run_files import read_run, read_twins
    from attune_lab.parameters import settled_approvals

    runs = read_run(baseline), read_run(candidate), read_twins(twin or [])
    seeds = [(read_run(first).curve, read_run(second).curve) for first, second in map(_seed, again or ())]
    verdict = compare_runs(*runs, approvals=settled_approvals(approve or ()), start=start and start.value, seeds=seeds)
    if html is not None:
        from attune_lab.gate.page import render, write

        write(render(verdict, *runs), html)
    emit(verdict.to_json(), as_json=as_json, render=lambda console: _render(console, verdict))
    if verdict.verdict != "pass":
        raise typer.Exit(1)


def _seed(text: str) -> tuple[str, str]:
    """Baseline and candidate of one seed."""
    from attune_lab.contracts import UserError

    baseline, equals, candidate = text.partition("=")
    if not equals or not baseline or not candidate:
        raise UserError(f"--again {text}: name the two runs of one seed as BASELINE=CANDIDATE.")
    return baseline, candidate


def _render(console: Console, verdict: Verdict) -> None:
    """Verdict, likely fault and reasons first, then what could not be checked, then what every check found."""
    from rich.markup import escape

    colour = COLOURS[verdict.verdict]
    likely = f", likely {verdict.families[0]}" if verdict.families else ""
    console.print(f"[bold {colour}]{verdict.verdict}[/bold {colour}]{escape(likely)}")
    if verdict.verdict != "pass":
        for reason in verdict.reasons:
            indented(console, f"- {reason}")
    for check in verdict.checks:
        if check.outcome == "skipped":
            indented(console, f"Not checked: {check.reason}")
    if any(check.outcome != "skipped" for check in verdict.checks):
        console.print(_checks(verdict, wide=console.width >= WIDE))


def _checks(verdict: Verdict, *, wide: bool) -> Table:
    """One line a check. Findings stand where there is room; the page has the whole sentences."""
    from rich.markup import escape

    findings = ("finding",) if wide else ()
    drawn = table("Checks", "outcome", "check", "value", "limit", *findings, right=("value", "limit"))
    drawn.expand, drawn.columns[-1].ratio = wide, 1 if wide else None
    for column in drawn.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for check in verdict.sorted_checks():
        if check.outcome != "skipped":
            outcome, limit = f"[{COLOURS[check.outcome]}]{check.outcome}[/]", check.figures.get("limit")
            cells = (escape(check.name), _shown(check.measured), _shown(limit), escape(check.reason))
            drawn.add_row(outcome, *cells[: len(drawn.columns) - 1])
    return drawn


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.5g}" if abs(figure) >= 0.1 or not figure else f"{figure:.1e}"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(gate)
