"""`attune gate`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from attune_lab.cli.output import Json, emit

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.gate.verdict import Verdict


class Start(StrEnum):
    """What the user may say of the initial weights."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


def gate(
    baseline: Annotated[
        str,
        typer.Option(
            help="Run folder, Megatron-LM log, CSV (step,lm_loss[,grad_norm]), or recipe,log.", show_default=False
        ),
    ],
    candidate: Annotated[str, typer.Option(help="The same for the run to judge.", show_default=False)],
    twin: Annotated[
        list[str] | None, typer.Option(help="A legitimate repeat or variant of the baseline; repeatable.")
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
    as_json: Json = False,
) -> None:
    """Judge whether a candidate still trains the same model as the baseline.

    Exit code 0 for pass, 1 for reject or inconclusive.

    Example: attune gate --baseline base.csv --candidate new.csv --twin base-again.csv
    """
    from attune_lab.gate import run_gate

    verdict = run_gate(
        baseline, candidate, list(twin or []), tuple(approve or ()), start=start and start.value,
        again=[_seed(text) for text in again or ()],
    )  # fmt: skip
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
    from rich.markup import escape

    colour = {"pass": "green", "reject": "red", "inconclusive": "yellow"}[verdict.verdict]
    console.print(f"[bold {colour}]{verdict.verdict}[/bold {colour}]")
    for reason in verdict.reasons:
        console.print(f"  - {escape(reason)}")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(gate)
