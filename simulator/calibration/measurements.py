"""The published measurements as rows: what a row measured, how its run ended, and which rows belong together.

``data/measurements.csv`` holds one run a row in the schema of ``attune predict`` (docs/predict.md), with its source;
docs/measurements.md says where the figures come from and what they count.  ``data/lever_pairs.csv`` names rows that
differ by one lever.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Literal

GIB = 2.0**30
_BYTES = {"": 1e9, "GB": 1e9, "GiB": GIB}

_CELL = ("source_id", "framework_version", "model", "layers", "hidden", "accelerator", "n_gpus", "gbs", "seq_len")


class Outcome(StrEnum):
    """How a run ended. FAILED: crashed or out of memory, where the source does not tell them apart."""

    RAN = "ran"
    OOM = "oom"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LeverPair:
    """Two measured rows that differ by one lever.

    Attributes:
        before, after: ids of the rows.
        lever: what was changed.
        kind: ``speed`` (tokens per second and GPU) or ``memory`` (peak).
        effect: measured, after over before minus one.
        note: what else a reader must know; blank for a clean pair.
    """

    before: str
    after: str
    lever: str
    kind: Literal["speed", "memory"]
    effect: float
    note: str


def load_measurements() -> list[dict[str, str]]:
    """All rows of the data set, in file order; blank cells mean not published."""
    return list(csv.DictReader(io.StringIO(_read("measurements.csv").decode())))


def load_lever_pairs() -> list[LeverPair]:
    """All pairs of ``data/lever_pairs.csv``, in file order."""
    rows = csv.DictReader(io.StringIO(_read("lever_pairs.csv").decode()))
    return [
        LeverPair(
            before=row["id_before"],
            after=row["id_after"],
            lever=row["lever"],
            kind="memory" if row["effect_kind"] == "memory" else "speed",
            effect=float(row["effect"]),
            note=row["note"],
        )
        for row in rows
    ]


def data_hash() -> str:
    """First 16 hex digits of the SHA-256 of both files: which data a calibration was fitted to."""
    return hashlib.sha256(_read("measurements.csv") + _read("lever_pairs.csv")).hexdigest()[:16]


def measured_speed(row: Mapping[str, str]) -> float:
    """Tokens per second and GPU of ``row`` on the data set's one scale; nan where none is published."""
    return _number(row, "tokens_per_s_per_gpu_std")


def measured_memory_bytes(row: Mapping[str, str]) -> float:
    """Peak memory of ``row``, bytes, of the statistic named in ``mem_statistic``; nan where none is published.

    The data set is in GB (1e9); a file that has a ``mem_unit`` column may hold GiB.

    Raises:
        ValueError: a unit that is neither GB nor GiB.
    """
    unit = row.get("mem_unit", "").strip()
    if unit not in _BYTES:
        raise ValueError(f"row {row.get('id', '?')}: mem_unit {unit!r} is not known; write GB or GiB")
    return _number(row, "peak_mem_gb") * _BYTES[unit]


def outcome(row: Mapping[str, str]) -> Outcome:
    """How the run of ``row`` ended, from its columns ``oom`` and ``failed``."""
    if row.get("oom", "") == "1":
        return Outcome.OOM
    if row.get("failed", "") == "1":
        return Outcome.FAILED
    return Outcome.RAN if "0" in (row.get("oom", ""), row.get("failed", "")) else Outcome.UNKNOWN


def sweep_cell(row: Mapping[str, str]) -> tuple[str, ...]:
    """Key shared by rows whose speeds may be ranked against each other.

    Those are runs of one source and version, of one model on as many of the same accelerators, with the same batch
    and sequence length: what is left to differ is the layout and its levers.
    """
    return tuple(row.get(column, "") for column in _CELL)


def _read(name: str) -> bytes:
    return files("simulator").joinpath("data", name).read_bytes()


def _number(row: Mapping[str, str], column: str) -> float:
    text = row.get(column, "").strip()
    try:
        value = float(text) if text else math.nan
    except ValueError:
        value = -math.inf
    if text and not 0 < value < math.inf:
        raise ValueError(f"row {row.get('id', '?')[:40]}: {column} holds {text[:40]!r}; a number above 0 is needed")
    return value
