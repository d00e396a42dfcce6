"""Reads the curve of a run from a CSV, a Megatron-LM log, or a run folder that holds one of them.

Rules for untidy files: steps may come in any order. Where they go back and repeat, the run was restarted: what it
printed from there on before is dropped, because training did not go on from it. A step that stands twice in a row in a
CSV with different losses is an error. A line that was cut off is left out.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.gate.curve import Curve, Floats
from attune_lab.logs.readers.megatron import iteration_line
from attune_lab.recipe.text_files import read_bytes

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_CLOCK = ("time", "elapsed", "date")
_MAX_BYTES = 512_000_000
_MAX_STEP = 2**53
_MAX_DIGITS = 100
_CURVE_SUFFIXES = (".csv", ".log", ".out", ".txt")

Row = Mapping[str, str]


def read_curve(path: str | Path) -> Curve:
    """The curve in a CSV, a log or a run folder.

    A CSV has the columns ``step,lm_loss[,grad_norm][,grad_norm.GROUP...][,update_norm]``; of other columns only those
    of times and dates are looked at, to tell copies. Rows without a loss are ignored.

    Raises:
        UserError: nothing there, or nothing that is a curve.
    """
    file = curve_file(Path(path))
    text = _text(file)
    rows = _log_rows(text)
    if not rows:
        rows = _csv_rows(text, file)
    return _curve(rows, file)


def read_log(path: str | Path) -> dict[int, Row]:
    """The columns of every step of a Megatron-LM log by their printed names; empty where the curve is a CSV.

    Raises:
        UserError: nothing there, or a step that is no whole number.
    """
    file = curve_file(Path(path))
    columns = {_step(step, file): values for step, _, values in _log_lines(_text(file))}
    return {step + _first(columns): values for step, values in columns.items()}


def printed_quantum(text: str) -> float:
    """Distance to the next number that can be printed with as many digits."""
    mantissa, _, exponent = text.lower().partition("e")
    return float(10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])))


def curve_file(path: Path) -> Path:
    """The file itself, or the one curve in a run folder: a CSV before a log.

    Raises:
        UserError: no such path, or no curve or several of a kind in the folder.
    """
    if os.path.isfile(path):  # unlike pathlib's, it does not raise where a name is too long
        return path
    if not os.path.isdir(path):
        if os.path.lexists(path):  # a pipe, a device, a link into the void: who reads it says which
            return path
        raise UserError(f"{path}: no such file or folder; give a run folder, a log or a CSV.")
    for suffix in _CURVE_SUFFIXES:
        found = sorted(path.glob(f"*{suffix}"))
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{path}: holds several {suffix} files; name the one to read.")
    raise UserError(f"{path}: holds no curve ({', '.join(_CURVE_SUFFIXES)}); name the file to read.")


def write_csv(curve: Curve, path: Path) -> None:
    """Writes what `read_curve` reads, with every digit of the values; norms that are nan become blank cells."""
    names = list(curve.norms)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["step", "lm_loss", *names])
        for i, step in enumerate(curve.steps):
            norms = [curve.norms[name][i] for name in names]
            writer.writerow([int(step), float(curve.loss[i]), *("" if np.isnan(n) else float(n) for n in norms)])


def _text(file: Path) -> str:
    data = read_bytes(file, "CSV or training log", _MAX_BYTES)
    if b"\0" in data:
        raise UserError(f"{file}: is not a text file; give a CSV or a training log.")
    return data.decode("utf-8-sig", errors="replace")


def _log_rows(text: str) -> list[Row]:
    """The iteration lines of a Megatron-LM log, the last of each step."""
    rows: list[Row] = []
    for step, stamp, values in _log_lines(text):
        if rows and rows[-1]["step"] == step:
            rows.pop()
        clock = f"{stamp} {values.get('elapsed time per iteration (ms)', '')}".strip()
        norm = values.get("grad norm", "")
        rows.append({"step": step, "lm_loss": values["lm loss"], "grad_norm": norm, "clock": clock})
    return rows


def _log_lines(text: str) -> Iterator[tuple[str, str, Row]]:
    """(step, time stamp, columns by name) of every iteration line with a loss, of every version since 2.0."""
    lines = [line for printed in text.splitlines() if (line := iteration_line(printed))]
    closed = any(line.closed for line in lines)
    if closed and not lines[-1].closed:
        lines.pop()  # the end of the file was cut off
    for line in lines:
        values = dict(line.columns(closed=closed))
        if "lm loss" in values:
            yield line.step, line.stamp, values


def _csv_rows(text: str, file: Path) -> list[Row]:
    try:
        reader = csv.reader(io.StringIO(text, newline=None))
        header = [name.strip() for name in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{file}: is neither a CSV nor a Megatron-LM log ({error}).") from error
    if "step" not in header or "lm_loss" not in header:
        raise UserError(f"{file}: is neither a CSV with the columns step,lm_loss nor a Megatron-LM log.")
    if len(set(header)) < len(header):
        raise UserError(f"{file}: line 1 names a column twice.")
    lines = [(number, cells) for number, cells in lines if any(cell.strip() for cell in cells)]
    if (
        lines
        and not text.endswith(("\n", "\r"))
        and _cut(lines[-1][1], [cells for _, cells in lines[:-1]], len(header))
    ):
        lines.pop()
    clocks = [name for name in header if any(word in name.lower() for word in _CLOCK)]
    rows: list[Row] = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise UserError(f"{file}: line {number} has {len(cells)} cells, the header {len(header)}.")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        rows.append({**row, "clock": " ".join(row[name] for name in clocks).strip()})
    return rows


def _cut(last: list[str], others: list[list[str]], columns: int) -> bool:
    """Whether the file was cut off within its last line: cells are missing, or the end is shorter than all above."""
    if len(last) < columns:
        return bool(others)
    return bool(others) and len(last[-1]) < min(len(cells[-1]) for cells in others if cells)


def _curve(rows: Iterable[Row], file: Path) -> Curve:
    """Rows of text, sorted by step, as a curve."""
    rows = [row for row in rows if row["lm_loss"]]
    if not rows:
        raise UserError(f"{file}: has no step with a loss.")
    by_step = dict(_kept([(_step(row["step"], file), row) for row in rows], file))
    steps = sorted(by_step)
    texts = [by_step[step]["lm_loss"] for step in steps]
    loss = np.array([_number(text, "lm_loss", file) for text in texts])
    names = [n for n in rows[0] if n in ("grad_norm", "update_norm") or n.startswith("grad_norm.")]
    norms = {n: np.array([_number(by_step[s][n] or "nan", n, file) for s in steps]) for n in names}
    recorded = {n: values for n, values in norms.items() if not np.isnan(values).all()}
    quanta = {n: _quanta([by_step[s][n] or "nan" for s in steps]) for n in recorded}
    clock = tuple(by_step[s].get("clock", "") for s in steps)
    return Curve(np.array(steps) + _first(steps), loss, _quanta(texts), recorded, quanta, clock if any(clock) else ())


def _first(steps: Collection[int]) -> int:
    """What makes the first step of training 1: some trainers count from 0."""
    return 1 if 0 in steps else 0


def _step(text: str, file: Path) -> int:
    step = _number(text, "step", file)
    if not 0 <= step <= _MAX_STEP or step != int(step):
        raise UserError(f"{file}: step {text} is not a whole number.")
    return int(step)


def _kept(rows: list[tuple[int, Row]], file: Path) -> list[tuple[int, Row]]:
    """The rows that training went on from: all, unless a restart repeats steps."""
    losses: dict[int, set[str]] = {}
    for step, row in rows:
        losses.setdefault(step, set()).add(row["lm_loss"])
    repeated = {step for step, texts in losses.items() if len(texts) > 1}
    if not repeated:
        return rows
    back = [(step, after) for (step, _), (after, _) in pairwise(rows) if after <= step]
    if len(back) > len(repeated) or any(step == after for step, after in back):
        raise UserError(f"{file}: step {min(repeated)} appears twice with different losses; keep one.")
    kept: list[tuple[int, Row]] = []
    for step, row in rows:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, row))
    return kept


def _number(text: str, column: str, file: Path) -> float:
    if len(text) > _MAX_DIGITS or not _NUMBER.fullmatch(text):
        raise UserError(f"{file}: {column} holds {text[:40]!r}, which is not a number.")
    return float(text)


def _quanta(texts: list[str]) -> Floats:
    """Distance to the next printable value, shape (T,).

    In exponent notation every value shows its own; in plain notation trailing zeros may have been dropped, so the
    finest value of the file speaks for all.
    """
    quanta = np.zeros(len(texts))
    plain = []
    for i, text in enumerate(texts):
        if not math.isfinite(float(text)):
            continue
        quanta[i] = printed_quantum(text)
        if "e" not in text.lower():
            plain.append(i)
    if plain:
        quanta[plain] = quanta[plain].min()
    return quanta
