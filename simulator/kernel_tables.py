"""Constants of single kernels by accelerator: what `data/kernels.json` holds, and how it is read and written.

A table maps an accelerator family (``H100``) and a variant (number format, kind of attention, collective) to the
constants of one formula, with their provenance. Families without a row of their own use the nearest by compute
capability.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, NamedTuple, TypeVar

from simulator.hardware import Accelerator

_NEAREST = {7: "A100", 8: "A100", 9: "H100", 10: "B200"}  # by compute capability
_OTHER = "MI300X"


class GemmFit(NamedTuple):
    """Constants of `simulator.kernels.gemm_seconds`.

    Attributes:
        eta: share of the peak an endless product reaches.
        k0: elements of depth that filling and draining one tile's pipeline costs.
        waves: waves of 128 x 256 tiles, one per SM, lost at the start and the end of a kernel.
        rows: rows lost in each group of a grouped product (half-filled tiles).
        eta_m: share of the HBM rate; above 1 where the L2 cache saves traffic.
        eta_cast: share of the HBM rate of the kernel that quantises activations.
        tau_us: fixed part of a call, microseconds.
    """

    eta: float
    k0: float
    waves: float
    rows: float
    eta_m: float
    eta_cast: float
    tau_us: float


class AttentionFit(NamedTuple):
    """Constants of `simulator.kernels.attention_seconds`.

    Attributes:
        eta: share of the BF16 peak an endless sequence with endless heads reaches.
        d0: elements of head width that softmax and its bookkeeping cost.
        fill: query blocks per SM lost because the last ones leave SMs idle.
        io: times that queries, keys, values and output pass the HBM.
        tau_us: fixed part of a call, microseconds.
    """

    eta: float
    d0: float
    fill: float
    io: float
    tau_us: float


class CollectiveFit(NamedTuple):
    """Constants of a collective inside one fast domain; S is what one rank sends, n the ranks.

    T = latency + step (n - 1) + S/beta + sqrt(ramp S/beta), beta = rate (1 - loss/n) of the link.
    """

    rate: float
    loss: float
    latency_us: float
    step_us: float
    ramp_us: float


class DispatchFit(NamedTuple):
    """Constants of a fused expert dispatch inside one fast domain: bound by the SMs that copy, not by the link.

    T = latency + S/beta + sqrt(ramp S/beta), beta in GB/s at 20 SMs.
    """

    gb_s: float
    latency_us: float
    ramp_us: float


F = TypeVar("F", bound=tuple[float, ...])


@dataclass(frozen=True)
class Entry(Generic[F]):
    """Constants with their provenance.

    Attributes:
        fit: the constants.
        source: library and version measured, or the reason for a prior.
        shapes: shapes measured; half of them fitted; 0 for a prior.
        error_pct: mean, median and 90th percentile of the relative error on the other half; empty for a prior.
    """

    fit: F
    source: str
    shapes: int = 0
    error_pct: tuple[float, ...] = ()


Table = Mapping[str, Mapping[str, Entry[F]]]


@dataclass(frozen=True)
class KernelTables:
    """All constants: family -> variant -> entry, one table per formula."""

    gemm: Table[GemmFit]
    grouped_gemm: Table[GemmFit]
    attention: Table[AttentionFit]
    collective: Table[CollectiveFit]
    dispatch: Table[DispatchFit]


_KINDS: dict[str, type[Any]] = {
    "gemm": GemmFit,
    "grouped_gemm": GemmFit,
    "attention": AttentionFit,
    "collective": CollectiveFit,
    "dispatch": DispatchFit,
}


def family(name: str) -> str:
    """The family of an accelerator's name: ``H100`` of ``H100-SXM5-80GB``."""
    return name.partition("-")[0]


def entry(table: Table[F], chip: Accelerator, variant: str) -> Entry[F] | None:
    """The entry of an accelerator's family or, where that lacks it, of the nearest one; None where that does too."""
    own = table.get(family(chip.name), {})
    return own.get(variant) or table.get(_NEAREST.get(chip.arch_major, _OTHER), {}).get(variant)


@cache
def kernel_tables() -> KernelTables:
    """The constants this package ships; their sources are in ``data/kernels.json``."""
    return parse(json.loads(files("simulator").joinpath("data", "kernels.json").read_text("utf-8")))


def parse(content: Mapping[str, Any]) -> KernelTables:
    """Tables from the content of a kernels.json.

    Raises:
        ValueError: a table is missing, or an entry lacks a constant.
    """
    missing = set(_KINDS) - set(content)
    if missing:
        raise ValueError(f"kernel constants lack the table {sorted(missing)[0]!r}: fit them again")
    tables = {
        kind: {
            name: {variant: _entry(kind, name, variant, row) for variant, row in variants.items()}
            for name, variants in content[kind].items()
        }
        for kind in _KINDS
    }
    return KernelTables(**tables)


def _entry(kind: str, name: str, variant: str, row: Mapping[str, Any]) -> Entry[Any]:
    names = _KINDS[kind]._fields
    lacking = [field for field in (*names, "source") if field not in row]
    if lacking:
        raise ValueError(f"kernel constants {kind}, {name}, {variant} lack {lacking[0]!r}: fit them again")
    fit = _KINDS[kind](*(float(row[field]) for field in names))
    return Entry(fit, str(row["source"]), int(row.get("shapes", 0)), tuple(map(float, row.get("error_pct", ()))))


_ABOUT = (
    "Constants of single kernels, by accelerator family and variant; their formulas are in simulator/kernel_tables.py "
    "and simulator/kernels.py. Measured entries are fitted by simulator/calibration/kernel_tables.py on half of the "
    "shapes of the kernel tables of ai-dynamo/aiconfigurator@095f58a (Apache-2.0; inference kernels, one GPU, inside a "
    "CUDA graph); error_pct is the mean, median and 90th percentile of the relative error on the other half. Entries "
    "without shapes are priors."
)


def to_json(tables: KernelTables) -> str:
    """The tables as JSON, one entry a line."""
    kinds = [f'"about": {json.dumps(_ABOUT)}']
    for kind in _KINDS:
        families = []
        for name, variants in sorted(getattr(tables, kind).items()):
            lines = ",\n".join(f'  "{variant}": {_row(one)}' for variant, one in sorted(variants.items()))
            families.append(f' "{name}": {{\n{lines}\n }}')
        kinds.append(f'"{kind}": {{\n' + ",\n".join(families) + "\n}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def _row(one: Entry[Any]) -> str:
    values = zip(one.fit._fields, one.fit, strict=True)
    row: dict[str, Any] = {name: round(float(f"{value:.4g}"), 6) for name, value in values}
    row |= {"source": one.source}
    if one.shapes:
        row |= {"shapes": one.shapes, "error_pct": [round(error, 1) for error in one.error_pct]}
    return json.dumps(row)
