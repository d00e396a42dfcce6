"""`attune gate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attune_lab.cli.output import Json, emit

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.gate.verdict import Verdict


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
    as_json: Json = False,
) -> None:
    """Judge whether a candidate still trains the same model as the baseline.

    Exit code 0 for pass, 1 for reject or inconclusive.

    Example: attune gate --baseline base.csv --candidate new.csv --twin base-again.csv
    """
    from attune_lab.gate import run_gate
    from attune_lab.parameters import settled_approvals

    verdict = run_gate(baseline, candidate, list(twin or []), settled_approvals(approve or ()))
    emit(verdict.to_json(), as_json=as_json, render=lambda console: _render(console, verdict))
    if verdict.verdict != "pass":
        raise typer.Exit(1)


def _render(console: Console, verdict: Verdict) -> None:
    from rich.markup import escape

    colour = {"pass": "green", "reject": "red", "inconclusive": "yellow"}[verdict.verdict]
    console.print(f"[bold {colour}]{verdict.verdict}[/bold {colour}]")
    for reason in verdict.reasons:
        console.print(f"  - {escape(reason)}")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(gate)
