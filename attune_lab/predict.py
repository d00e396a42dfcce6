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
from attune_lab.writing import write_file
from simulator.calibration.points import REQUIRED_COLUMNS, InvalidCell, Point, Unsupported, parse_point
from simulator.hardware import ClusterSpec
from simulator.job import Jobs, make_jobs
from simulator.models import ModelShape
from simulator.physics import Physics, physics_of
from simulator.step import StepEstimate, simulate_step

PREDICTED_COLUMNS = (
    "pred_status",
    "pred_reason",
    "pred_step_time_s",
    "pred_tokens_per_s_per_gpu",
    "pred_model_tflops_per_gpu",
    "pred_peak_mem_gb",
)
_MAX_BYTES = 512_000_000


def predict_file(points: Path, out: Path) -> dict[str, int]:
    """Write ``points`` with the predicted columns added to ``out``; returns rows by ``pred_status``.

    Statuses: ``ok``, ``oom`` (predicted not to fit), ``invalid`` (a cell cannot be read), ``unsupported`` (read,
    but outside what the simulator prices). ``pred_peak_mem_gb`` is in GB (1e9) and of the row's
    ``mem_statistic``: allocated unless it says reserved or nvidia_smi.

    Raises:
        UserError: a file that is not a CSV of points.
        EnvironmentFault: ``out`` cannot be written.
    """
    header, rows = _read(points)
    predictions = predict_rows([dict(zip(header, row, strict=True)) for row in rows])
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


def predict_rows(rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The predicted columns of each row, in order. Never raises for a row's content."""
    results: list[dict[str, Any]] = [dict.fromkeys(PREDICTED_COLUMNS, "") for _ in rows]
    groups: dict[Any, list[tuple[int, Point]]] = defaultdict(list)
    for index, row in enumerate(rows):
        try:
            point = parse_point(row)
        except Unsupported as error:
            results[index].update(pred_status="unsupported", pred_reason=str(error))
        except InvalidCell as error:
            results[index].update(pred_status="invalid", pred_reason=str(error))
        else:
            groups[point.shape, point.cluster, point.stack.name, point.version].append((index, point))
    for (shape, cluster, stack, version), members in groups.items():
        _predict(results, shape, cluster, physics_of(stack, version), members)
    return results


def _predict(
    results: list[dict[str, Any]],
    shape: ModelShape,
    cluster: ClusterSpec,
    physics: Physics,
    members: Sequence[tuple[int, Point]],
) -> None:
    """Fill in one batch; where the simulator refuses it, row by row, so that a bad row spoils no other."""
    names = sorted({name for _, point in members for name in point.columns})
    try:
        jobs = make_jobs(shape, cluster, **_columns(names, [point for _, point in members]))
        step = simulate_step(jobs, physics)
    except (ValueError, OverflowError) as error:
        if len(members) > 1:
            for member in members:
                _predict(results, shape, cluster, physics, [member])
        else:
            results[members[0][0]].update(pred_status="unsupported", pred_reason=str(error))
    else:
        _fill(results, members, jobs, step)


def _columns(names: Sequence[str], points: Sequence[Point]) -> dict[str, Any]:
    """Columns of one batch; a lever that some rows do not name takes the simulator's default there."""
    from simulator.job import DEFAULTS

    return {name: [point.columns.get(name, DEFAULTS.get(name)) for point in points] for name in names}


def _fill(results: list[dict[str, Any]], members: Sequence[tuple[int, Point]], jobs: Jobs, step: StepEstimate) -> None:
    capacity = jobs.cluster.accelerator.memory_bytes
    needed = step.peak_reserved_bytes.max(axis=1)
    printed = 0 if members[0][1].stack.prints_first_rank else step.peak_reserved_bytes.argmax(axis=1)
    rows = np.arange(jobs.size)
    allocated, used = step.peak_allocated_bytes[rows, printed], step.peak_reserved_bytes[rows, printed]
    shown = {"reserved": used - step.outside_bytes, "nvidia_smi": used}  # else what torch calls allocated
    for position, (index, point) in enumerate(members):
        peak = shown.get(point.memory_statistic, allocated)[position]
        values = {
            "pred_step_time_s": step.step_time_s[position],
            "pred_tokens_per_s_per_gpu": step.tokens_per_s_per_gpu[position],
            "pred_model_tflops_per_gpu": step.model_flops_per_s_per_gpu[position] / 1e12,
            "pred_peak_mem_gb": peak / 1e9,
        }
        results[index].update({name: f"{float(value):.6g}" for name, value in values.items()})
        fits = bool(needed[position] <= capacity)
        results[index]["pred_status"] = "ok" if fits else "oom"
        if not fits:
            results[index]["pred_reason"] = (
                f"predicted {needed[position] / 2**30:.1f} GiB of {capacity / 2**30:.1f} GiB"
            )
        if not all(np.isfinite(value) and value > 0 for value in values.values()):
            results[index].update(dict.fromkeys(PREDICTED_COLUMNS, ""), pred_status="unsupported")
            results[index]["pred_reason"] = "the prediction is no positive number: the sizes make no sense together"


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
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
