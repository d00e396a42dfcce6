"""Predictions for a table of measurement points, batched by model and cluster."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.recipe.text_files import read_bytes
from attune_lab.writing import refuse_unwritable, write_file
from simulator.calibration.batches import Batch, batch_memory, batch_points, measured_peak, memory_demand
from simulator.calibration.points import REQUIRED_COLUMNS, InvalidCell, Point, Unsupported, parse_point
from simulator.hardware import GIB
from simulator.physics import Physics
from simulator.posterior import POSTERIOR, Posterior
from simulator.step import simulate_step

PREDICTED_COLUMNS = (
    "pred_status",
    "pred_reason",
    "pred_step_time_s",
    "pred_tokens_per_s_per_gpu",
    "pred_model_tflops_per_gpu",
    "pred_peak_mem_gb",
)
_MAX_BYTES = 512_000_000


def predict_file(points: Path, out: Path, posterior: Posterior = POSTERIOR) -> dict[str, int]:
    """Write ``points`` with the predicted columns added to ``out``; returns rows by ``pred_status``.

    ``posterior`` has the constants.

    Statuses: ``ok``, ``oom`` (predicted not to fit), ``invalid`` (a cell cannot be read), ``unsupported`` (read,
    but outside what the simulator prices). ``pred_peak_mem_gb`` is in GB (1e9) and of the row's
    ``mem_statistic``: allocated unless it says reserved or nvidia_smi.

    Raises:
        UserError: a file that is not a CSV of points.
        EnvironmentFault: ``out`` cannot be written.
    """
    refuse_unwritable(out)
    header, rows = read_points(points)
    predictions = predict_rows([dict(zip(header, row, strict=True)) for row in rows], posterior)
    fields = [name for name in header if name not in PREDICTED_COLUMNS]
    keep = [header.index(name) for name in fields]
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow([*fields, *PREDICTED_COLUMNS])
    for row, predicted in zip(rows, predictions, strict=True):
        writer.writerow([row[i] for i in keep] + [predicted[c] for c in PREDICTED_COLUMNS])
    write_file(out, table.getvalue().encode())
    counts: dict[str, int] = defaultdict(int)
    for predicted in predictions:
        counts[predicted["pred_status"]] += 1
    return dict(counts)


def read_calibration(path: Path | None) -> Posterior:
    """The calibration in a file that ``attune calibrate`` wrote; the project's own where None is given.

    Raises:
        UserError: the file cannot be read or is none.
    """
    if path is None:
        return POSTERIOR
    content = read_bytes(path, "calibration", _MAX_BYTES)
    try:
        return Posterior.from_json(content)
    except ValueError as error:
        raise UserError(f"{path} is no calibration ({error}); write one with attune calibrate --out") from error


def predict_rows(rows: Sequence[dict[str, str]], posterior: Posterior = POSTERIOR) -> list[dict[str, Any]]:
    """The predicted columns of each row, in order. Never raises for a row's content."""
    results: list[dict[str, Any]] = [dict.fromkeys(PREDICTED_COLUMNS, "") for _ in rows]
    points: dict[int, Point] = {}
    for index, row in enumerate(rows):
        try:
            points[index] = parse_point(row)
        except Unsupported as error:
            results[index].update(pred_status="unsupported", pred_reason=str(error))
        except InvalidCell as error:
            results[index].update(pred_status="invalid", pred_reason=str(error))
    for index, point in points.items():
        results[index]["pred_reason"] = point.warning
    batches, refused = batch_points(points)
    for index, reason in refused.items():
        results[index].update(pred_status="unsupported", pred_reason=reason)
    for batch in batches:
        _fill(results, batch, posterior.physics(batch.stack, batch.version))
    return results


def _fill(results: list[dict[str, Any]], batch: Batch, physics: Physics) -> None:
    step = simulate_step(batch.jobs, physics)
    capacity = batch.jobs.cluster.accelerator.memory_bytes / GIB
    memory = batch_memory(batch, physics.memory)
    demand = memory_demand(batch.jobs, memory)
    figures = {
        "pred_step_time_s": step.step_time_s,
        "pred_tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "pred_model_tflops_per_gpu": step.model_flops_per_s_per_gpu / 1e12,
        "pred_peak_mem_gb": measured_peak(batch, memory) / 1e9,
    }
    sound = np.all([np.isfinite(values) & (values > 0) for values in figures.values()], axis=0)
    for position, index in enumerate(batch.rows):
        result = results[index]
        if not sound[position]:
            result["pred_status"] = "unsupported"
            result["pred_reason"] = "the prediction is no positive number: the sizes make no sense together"
            continue
        result.update({name: f"{float(values[position]):.6g}" for name, values in figures.items()})
        result["pred_status"] = "ok" if demand[position] <= 1 else "oom"
        if result["pred_status"] == "oom":
            result["pred_reason"] = f"predicted {demand[position] * capacity:.1f} GiB of {capacity:.1f} GiB"


def read_points(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV of points.

    Raises:
        UserError: it cannot be read, lacks a column or names one twice.
    """
    try:
        text = read_bytes(path, "CSV of points", _MAX_BYTES).decode("utf-8-sig")
        rows = list(_rows(text, path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a UTF-8 CSV file ({error}); correct it there") from error
    if not rows:
        raise UserError(f"{path} is empty; the first line must name the columns")
    header = rows[0]
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise UserError(f"{path} line 1: missing column {', '.join(missing)}; see docs/predict.md for the schema")
    if len(set(header)) != len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise UserError(f"{path} line 1: column {', '.join(twice)} appears twice; rename one")
    return header, rows[1:]


def _rows(text: str, path: Path) -> Iterator[list[str]]:
    if "\0" in text:
        raise UserError(f"{path} is a binary file; give a CSV of points")
    width = 0
    reader = csv.reader(io.StringIO(text, newline=None), strict=True)
    for row in reader:
        if not row:
            continue
        width = width or len(row)
        if len(row) != width:
            raise UserError(f"{path} line {reader.line_num}: {len(row)} cells where the header has {width}")
        yield row
