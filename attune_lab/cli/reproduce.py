"""`attune reproduce`."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, console, emit, indented

if TYPE_CHECKING:
    from rich.console import Console

GROUP = "attune.reproduce"
"""Entry-point group of the package that makes the paper's tables."""


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="main, tuners, ablations, learning, sensitivity, gate; all when none is given.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of tables and studies; gone on with when it exists.")] = Path(
        "results/reproduce"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="One world, a small budget: a look, not to be quoted.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Campaigns at a time. Default: one a core.", show_default=False)
    ] = None,
    engine: Annotated[str, typer.Option(help="local, ray or dask.")] = "local",
    as_json: Json = False,
) -> None:
    """Make the paper's tables, ours beside theirs.

    Simulated, but for the gate, which trains for real on this machine. Interrupted? The same command goes on.

    Example: attune reproduce tuners --quick --out results/reproduce
    """
    from attune_lab.contracts import UserError
    from attune_lab.study.engines import require_engine

    runs_on = require_engine(engine)  # first: the rest does not import without its packages

    from attune_lab.report.study_progress import study_observer

    found = [entry for entry in entry_points(group=GROUP) if entry.name == "tables"]
    if not found:
        raise UserError("the package experiments, which makes the tables, is not installed; install attune-lab whole")
    with study_observer(console(stderr=True), quiet=as_json) as observer:
        make = found[0].load()
        data = make(
            tables or ["all"],
            out,
            quick=quick,
            workers=workers or os.cpu_count() or 1,
            engine=runs_on,
            observer=observer,
        )
    emit(data, as_json=as_json, render=lambda screen: _render(screen, data))


def _render(screen: Console, data: dict[str, Any]) -> None:
    """The paper's statements beside ours, and where the tables are, which are wider than a terminal."""
    from rich.markup import escape

    for made in data["tables"].values():
        screen.print(f"[bold]{escape(made['title'])}[/bold]")
        for claim in made["claims"]:
            screen.print(f"  {escape(claim['subject'])}: [bold]{escape(claim['verdict'])}[/bold]")
            lines = (f"paper: {claim['theirs']}", f"here:  {claim['ours']} ({made['provenance']})", claim["why"])
            for line in lines:
                indented(screen, line, 4)
        indented(screen, "\n".join(f"written: {path}" for path in made["written"]))


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(reproduce)
