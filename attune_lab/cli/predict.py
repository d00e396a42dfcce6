"""`attune predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attune_lab.cli.output import CalibrationFile, Json, emit


def predict(
    points: Annotated[Path, typer.Argument(help="CSV of measurement points (docs/predict.md).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Where to write the table with predictions.", show_default=False)],
    calibration: CalibrationFile = None,
    as_json: Json = False,
) -> None:
    """Predict step time, throughput and peak memory for a table of points, by simulation.

    A row that cannot be read or priced, or does not fit in memory, says so in pred_status and pred_reason.

    Example: attune predict points.csv --out predicted.csv
    """
    from attune_lab.predict import predict_file, read_calibration

    counts = predict_file(points, out, read_calibration(calibration))
    data = {"out": str(out), "rows": sum(counts.values()), "by_status": counts, "provenance": "simulated"}
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no rows"
    emit(
        data,
        as_json=as_json,
        render=lambda c: c.print(f"{data['rows']} rows, simulated ({summary}), written to {out}", markup=False),
    )


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(predict)
