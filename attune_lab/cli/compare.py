"""`attune compare`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, console, emit, table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from attune_lab.study.tables import Tables


def compare(
    study: Annotated[Path, typer.Argument(help="The study, a YAML file (docs/studies.md).", show_default=False)],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Campaigns at a time. Default: one a core.", show_default=False)
    ] = None,
    engine: Annotated[str, typer.Option(help="Where campaigns run: local, ray or dask.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray or Dask cluster. Default: one on this machine.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the study; resumed when it exists. Default: studies/NAME.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the same budget of GPU-hours with many tuners in many simulated worlds, and compare what they ship.

    Interrupted? Run the same command again: finished campaigns are kept. More tuners or worlds in the file extend it.

    Exit codes: 0 done, 1 campaigns were refused, 2 unusable input, 3 the environment failed.

    Example: attune compare study.yaml --workers 2
    """
    from attune_lab.study.engines import require_engine

    runs_on = require_engine(engine)  # first: the rest does not import without its packages

    from attune_lab.report.study_progress import study_observer
    from attune_lab.study.run import run_study
    from attune_lab.study.spec import load_study

    spec = load_study(study)
    folder = out or Path("studies") / spec.name
    with study_observer(console(stderr=True), quiet=as_json) as observer:
        tables = run_study(
            spec, folder, engine=runs_on, workers=workers or os.cpu_count() or 1, address=address, observer=observer
        )
    tuners = _summary(tables.campaigns)
    statuses = tables.campaigns["status"].value_counts().to_dict()
    data = {
        "study": spec.name,
        "out": str(folder),
        "campaigns": len(tables.campaigns),
        "statuses": statuses,
        "gpu_hours": float(tables.campaigns["gpu_hours_spent"].sum()),
        "tuners": tuners,
        "report": _report(folder, tables),
    }
    emit(data, as_json=as_json, render=lambda screen: _render(screen, data))
    if "refused" in statuses:
        raise typer.Exit(1)


def _summary(campaigns: pd.DataFrame) -> list[dict[Any, Any]]:
    """A row per tuner, best mean gain first; empty when no world was finished by every tuner."""
    from attune_lab.study.figures import comparable, summary

    return summary(campaigns).to_dict("records") if comparable(campaigns) else []


def _report(folder: Path, tables: Tables) -> list[str]:
    """The files of the report on a study."""
    from attune_lab.study.report import write_report
    from attune_lab.study.tables import CAMPAIGNS_FILE, read_parquet

    _, provenance = read_parquet(folder / CAMPAIGNS_FILE)
    return [str(path) for path in write_report(folder, tables.campaigns, tables.runs, provenance)]


def _render(screen: Console, data: dict[str, Any]) -> None:
    from rich.markup import escape

    numbers = ("gain %", "interval", "regret", "lost %", "tuner failed")
    drawn = table(
        "Simulated gain with its 95 % interval; regret in points; lost to failed runs",
        "tuner",
        *numbers,
        right=numbers,
    )
    for row in data["tuners"]:
        drawn.add_row(
            escape(row["tuner"]),
            f"{row['gain_pct']:+.1f}",
            f"{row['gain_low']:+.1f} … {row['gain_high']:+.1f}",
            "-" if row["regret_pct"] != row["regret_pct"] else f"{row['regret_pct']:.1f}",
            f"{row['lost_to_failures_pct']:.1f}",
            f"{row['failed']:.0f}",
        )
    screen.print(drawn)
    ended = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in data["statuses"].items())
    screen.print(f"{data['campaigns']} campaigns ({ended}), {data['gpu_hours']:,.0f} GPU-hours simulated", markup=False)
    for path in data["report"]:
        screen.print(f"report: {path}", soft_wrap=True, markup=False)
    screen.print(f"tables: {data['out']}", soft_wrap=True, markup=False)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(compare)
