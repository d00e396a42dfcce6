"""Reads the curve of a run from a CSV, a Megatron-LM log, or a run folder that holds one of them.

Rules for untidy files: rows of a CSV may come in any order, but a step may not appear twice with different
losses. A log repeats steps after a restart; the last print of a step counts, being the one training went on from.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.gate.curve import Curve, Floats
from attune_lab.recipe.text_files import read_bytes

_ITERATION = re.compile(r"iteration\s+(\d+)/\s*\d+\s*\|(.*)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_MAX_BYTES = 512_000_000
_MAX_STEP = 2**53
_MAX_DIGITS = 100
_CURVE_SUFFIXES = (".csv", ".log", ".out", ".txt")

Row = Mapping[str, str]


def read_curve(path: str | Path) -> Curve:
    """The curve in a CSV, a log or a run folder.

    A CSV has the columns ``step,lm_loss[,grad_norm][,grad_norm.GROUP...][,update_norm]``; other columns are
    ignored, and so are rows without a loss.

    Raises:
        UserError: nothing there, or nothing that is a curve.
    """
    file = curve_file(Path(path))
    text = _text(file)
    rows = _log_rows(text)
    if not rows:
        rows = _csv_rows(text, file)
    return _curve(rows, file)


def curve_file(path: Path) -> Path:
    """The file itself, or the one curve in a run folder: a CSV before a log.

    Raises:
        UserError: no such path, or no curve or several of a kind in the folder.
    """
    if os.path.isfile(path):  # unlike pathlib's, it does not raise where a name is too long
        return path
    if not os.path.isdir(path):
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
    """The iteration lines of a Megatron-LM log (every version since 2.0), the last of each step.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``training_log``.
    """
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        match = _ITERATION.search(line)
        if match is None:
            continue
        pairs = (item.rsplit(":", 1) for item in match[2].split("|") if ":" in item)
        values = {name.strip(): value.strip() for name, value in pairs}
        if "lm loss" in values:
            row = {"step": match[1], "lm_loss": values["lm loss"], "grad_norm": values.get("grad norm", "")}
            rows.pop(match[1], None)
            rows[match[1]] = row
    return list(rows.values())


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
    rows: list[Row] = []
    for number, cells in lines:
        if any(cell.strip() for cell in cells):
            if len(cells) != len(header):
                raise UserError(f"{file}: line {number} has {len(cells)} cells, the header {len(header)}.")
            rows.append(dict(zip(header, (cell.strip() for cell in cells), strict=True)))
    return rows


def _curve(rows: Iterable[Row], file: Path) -> Curve:
    """Rows of text, sorted by step, as a curve."""
    rows = [row for row in rows if row["lm_loss"]]
    if not rows:
        raise UserError(f"{file}: has no step with a loss.")
    by_step: dict[int, Row] = {}
    for row in rows:
        step = _number(row["step"], "step", file)
        if not 0 <= step <= _MAX_STEP or step != int(step):
            raise UserError(f"{file}: step {row['step']} is not a whole number.")
        if by_step.setdefault(int(step), row)["lm_loss"] != row["lm_loss"]:
            raise UserError(f"{file}: step {int(step)} appears twice with different losses; keep one.")
    steps = sorted(by_step)
    texts = [by_step[step]["lm_loss"] for step in steps]
    loss = np.array([_number(text, "lm_loss", file) for text in texts])
    names = [n for n in rows[0] if n in ("grad_norm", "update_norm") or n.startswith("grad_norm.")]
    norms = {n: np.array([_number(by_step[s][n] or "nan", n, file) for s in steps]) for n in names}
    recorded = {n: values for n, values in norms.items() if not np.isnan(values).all()}
    quanta = {n: _quanta([by_step[s][n] or "nan" for s in steps]) for n in recorded}
    first = 1 if steps[0] == 0 else 0  # some trainers count from 0
    return Curve(np.array(steps) + first, loss, _quanta(texts), recorded, quanta)


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
        mantissa, _, exponent = text.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        if not math.isfinite(float(text)):
            continue
        if exponent:
            quanta[i] = 10.0 ** (int(exponent) - decimals)
        else:
            plain.append((i, 10.0**-decimals))
    finest = min((quantum for _, quantum in plain), default=0.0)
    for i, _ in plain:
        quanta[i] = finest
    return quanta
