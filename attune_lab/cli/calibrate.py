"""`attune calibrate` and `attune validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, console, emit, indented, table

if TYPE_CHECKING:
    from rich.console import Console

Tables = Annotated[
    list[Path] | None,
    typer.Argument(help="Further CSV files of measured points (docs/measurements.md).", show_default=False),
]


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="Where to write the calibration (JSON).", show_default=False)],
    points: Tables = None,
    kernels: Annotated[
        Path | None,
        typer.Option(
            "--kernels", help="Folder of kernel tables: refit the kernel constants alone.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the constants of the physics to measurements: the project's own and, if given, yours.

    Takes some minutes. With --kernels, fit the constants of single kernels to tables of kernel times instead.

    Example: attune calibrate my-runs.csv --out calibration.json
    """
    from attune_lab.calibration import calibrate_kernels, calibrate_to
    from attune_lab.contracts import UserError

    if kernels is not None and points:
        raise UserError("--kernels fits kernel tables alone; leave out the tables of points, or --kernels")
    with console(stderr=True).status("fitting"):
        data = calibrate_kernels(kernels, out) if kernels is not None else calibrate_to(points or [], out)
    emit(data, as_json=as_json, render=lambda c: _render_fit(c, data))


def validate(
    points: Tables = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for accuracy.json, accuracy.md and plots.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="An earlier accuracy.json: fail where a figure got worse.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """How far predictions are from measurements they were not fitted to, by source, model and accelerator.

    Takes some minutes: the constants are refitted without each model and each source. Exit code 1 when a figure is
    worse than in --against by more than its noise.

    Example: attune validate --out report
    """
    from attune_lab.calibration import validate_to

    with console(stderr=True).status("fitting and holding out"):
        data = validate_to(points or [], out, against)
    emit(data, as_json=as_json, render=lambda c: _render_report(c, data))
    if data["worse"]:
        raise typer.Exit(1)


def _render_fit(to: Console, data: dict[str, Any]) -> None:
    if "constants" not in data:
        to.print(f"{data['kernels']} fits of kernel constants written to {data['out']}", markup=False)
        return
    rows = table("Constants", "constant", "prior", "fitted", "sd %", "what", right=("prior", "fitted", "sd %"))
    for name, entry in data["constants"].items():
        rows.add_row(name, f"{entry['prior']:.4g}", f"{entry['value']:.4g}", f"{100 * entry['sd']:.1f}", entry["what"])
    to.print(rows)
    to.print(f"{data['rows_fitted']} rows fitted; written to {data['out']}", markup=False)
    if data["own"]:
        _render_own(to, data["own"])


def _render_own(to: Console, own: dict[str, Any]) -> None:
    to.print(f"{own['compared']} of your {own['rows']} runs have a rate to compare with", markup=False)
    if own["compared"]:
        before, after = 100 * own["before"], 100 * own["after"]
        indented(to, f"speed was off by {before:.1f} % (median), is by {after:.1f} % now that it is fitted to them")
    for name, why in own["refused"].items():
        indented(to, f"{name} is left out: {why}")


def _render_report(to: Console, data: dict[str, Any]) -> None:
    from rich.markup import escape

    columns, numbers = ("figure", "value", "noise", "target", "", "n"), ("value", "noise", "target", "n")
    rows = table(
        "Accuracy of simulated figures, on runs they were not fitted to", *columns, right=numbers, wrap_first=True
    )
    for figure in data["figures"].values():
        bound = "≥" if figure["higher_is_better"] else "≤"
        target = "" if figure["target"] is None else f"{bound} {figure['target']:g}"
        met = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[figure["met"]]
        value, noise = f"{figure['value']:.3f}", f"{figure['noise']:.3f}"
        rows.add_row(figure["what"], value, noise, target, met, str(figure["count"]))
    to.print(rows)
    errors = table(
        "Errors of step time by source, %",
        "source",
        "rows",
        "bias",
        "median",
        "mean",
        right=("rows", "bias", "median", "mean"),
    )
    for row in data["tables"]["source"]:
        if row["time_rows"]:
            parts = (f"{100 * row[f'time_{part}']:.1f}" for part in ("bias", "median", "mean"))
            errors.add_row(escape(row["group"]), str(row["time_rows"]), *parts)
    to.print(errors)
    for sentence in data["worse"]:
        to.print(f"worse: {sentence}", markup=False, style="red")
    for path in data["written"]:
        to.print(f"written: {path}", markup=False)
    if data["left_out"]:
        to.print(f"left out: {data['left_out']}", markup=False)


def register(app: typer.Typer) -> None:
    """Add both commands to ``app``."""
    app.command()(calibrate)
    app.command()(validate)
