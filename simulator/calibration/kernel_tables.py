"""Fits `simulator.kernel_tables` to measured kernel times.

The measurements are six Parquet files, ``gemm``, ``moe_grouped``, ``attention_context``, ``mla_context``, ``nccl``
and ``deepep``, as rows of (accelerator, backend, version, sizes, time_s). Every fit minimises a robust loss of
log(predicted / measured) on half of the shapes and reports the error on the other half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import distinct_targets, domain_rate, latency_seconds, transfer_seconds
from simulator.hardware import Accelerator, accelerators
from simulator.job import Precision
from simulator.kernel_tables import (
    AttentionFit,
    CollectiveFit,
    DispatchFit,
    Entry,
    F,
    GemmFit,
    KernelTables,
    Table,
    family,
    kernel_tables,
)
from simulator.kernels import AttentionShape, attention_seconds, fitted_rates, gemm_seconds

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Found = dict[tuple[str, str], Entry[F]]  # by family and variant

_PRECISION = {
    "bf16": Precision.BF16,
    "fp8-tensor": Precision.FP8_TENSORWISE,
    "fp8-block": Precision.FP8_BLOCKWISE,
    "fp4": Precision.NVFP4,
}
FILES = ("gemm", "moe_grouped", "attention_context", "mla_context", "nccl", "deepep")
_LOSS_SCALE = 0.1  # log error from which a row counts less than squared
_FLOOR_BYTES, _PAYLOAD_BYTES = 2**13, 2**20
_CUDNN = {"H100": 1.07, "H200": 1.07, "B200": 1.21, "GB200": 1.21}
"""cuDNN's forward attention over TensorRT-LLM's at DeepSeek-V3's shape, 4,096 and 16,384 tokens: on Hopper 553 and 638
against 513 and 602 TFLOP/s, on Blackwell 1,324 and 1,698 against 1,082 and 1,418 (arXiv 2603.07685 against the fit).
No figure for Blackwell Ultra."""
_DISPATCH_SMS = 20  # what Megatron-LM gives DeepEP by default


@dataclass(frozen=True)
class Form(Generic[F]):
    """Kind of constants, start and bounds of a fit; a constant whose bounds are equal is held."""

    kind: Callable[..., F]
    start: F
    low: F
    high: F


class _GroupedCall(NamedTuple):
    """Constants of a whole expert layer's call: what its products lose, and what goes on around them."""

    rows: float
    eta_m: float
    passes: float
    fixed_us: float


_GEMM = Form(
    GemmFit,
    GemmFit(0.75, 100, 0.05, 0, 0.9, 0.6, 4.0),
    GemmFit(0.1, 0, 0, 0, 0.2, 0.1, 0.1),
    GemmFit(1.0, 2000, 1, 0, 4.0, 2.0, 50.0),
)
_WITHOUT_CAST = Form(GemmFit, *(fit._replace(eta_cast=1.0) for fit in (_GEMM.start, _GEMM.low, _GEMM.high)))
_GROUPED = Form(
    _GroupedCall,
    _GroupedCall(50, 0.8, 1.5, 20.0),
    _GroupedCall(0, 0.2, 0, 1),
    _GroupedCall(500, 1.5, 8, 200),
)
_ATTENTION = Form(
    AttentionFit,
    AttentionFit(0.6, 20, 0.5, 1.6, 15.0),
    AttentionFit(0.1, 0, 0, 0, 1.0),
    AttentionFit(1.0, 200, 4, 6, 100.0),
)
_MLA = Form(  # one head width: nothing tells d0 from eta
    AttentionFit,
    AttentionFit(0.6, 0, 0.5, 1.0, 15.0),
    AttentionFit(0.1, 0, 0, 0, 1.0),
    AttentionFit(1.0, 0, 4, 6, 100.0),
)
_COLLECTIVE = Form(
    CollectiveFit,
    CollectiveFit(0.8, 0.3, 5.0, 1.0, 15.0),
    CollectiveFit(0.7, 0, 0.5, 0, 0),
    CollectiveFit(1, 1.2, 50, 5, 100),
)
_IN_SWITCH = Form(  # eight GPUs only, and twice the link at most: the switch adds
    CollectiveFit,
    CollectiveFit(1.0, 0.0, 10.0, 0.0, 15.0),
    CollectiveFit(0.5, 0, 0.5, 0, 0),
    CollectiveFit(2.0, 0.0, 50, 0, 100),
)
_DISPATCH = Form(DispatchFit, DispatchFit(250, 40, 10), DispatchFit(30, 5, 0), DispatchFit(900, 200, 100))


def fit_kernel_tables(directory: Path) -> KernelTables:
    """Tables fitted to the measurements in ``directory``; families without any keep the present constants.

    Args:
        directory: holds the files named in `FILES`, with the suffix ``.parquet``.

    Raises:
        ValueError: a file is missing or lacks a column.
    """
    rows = {name: _read(directory / f"{name}.parquet") for name in FILES}
    present = kernel_tables()
    gemm = _merged(present.gemm, _fit_gemm(rows["gemm"]))
    return KernelTables(
        gemm=gemm,
        grouped_gemm=_merged(present.grouped_gemm, _fit_grouped(rows["moe_grouped"], gemm)),
        attention=_merged(present.attention, _fit_attention(rows["attention_context"]) | _fit_mla(rows["mla_context"])),
        collective=_merged(present.collective, _fit_collectives(rows["nccl"])),
        dispatch=_merged(present.dispatch, _fit_dispatch(rows["deepep"])),
    )


def _merged(present: Table[F], fitted: Found[F]) -> Table[F]:
    """The present table with fitted entries over its own."""
    merged = {name: dict(variants) for name, variants in present.items()}
    for (name, variant), one in fitted.items():
        merged.setdefault(name, {})[variant] = one
    return merged


def _read(path: Path) -> pd.DataFrame:
    """One table.

    Raises:
        ValueError: the file, or the library that reads it, is missing.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError("kernel tables need pandas and pyarrow: pip install 'attune-lab[calibration]'") from error
    if not path.is_file():
        raise ValueError(f"{path} does not exist: the directory must hold {', '.join(f'{n}.parquet' for n in FILES)}")
    return pd.read_parquet(path)


def _chip(name: str) -> Accelerator:
    """The accelerator a table calls ``name``: by full name, else the first of its family."""
    known = accelerators()
    for candidate in (name, *known):
        if candidate in known and family(candidate) == family(name):
            return known[candidate]
    raise ValueError(f"the tables name the accelerator {name!r}, which hardware.yaml lacks: add it there")


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the newest version of each library on each accelerator."""
    age = rows.version.map(lambda version: tuple(map(int, re.findall(r"\d+", version))))
    newest = age.groupby([rows.accelerator, rows.backend]).transform("max")
    return rows[age == newest]


def _groups(rows: pd.DataFrame, column: str) -> Iterator[tuple[Accelerator, str, pd.DataFrame]]:
    """Rows of the newest versions by accelerator and value of ``column``."""
    for (name, variant), group in _newest(rows).groupby(["accelerator", column]):
        yield _chip(str(name)), str(variant), group


def _columns(rows: pd.DataFrame, names: str) -> list[Floats]:
    """The columns named, as float arrays."""
    return [rows[name].to_numpy(dtype=np.float64) for name in names.split()]


def _fitted(form: Form[F], predict: Callable[[F], Floats], rows: pd.DataFrame) -> Entry[F]:
    """Constants of ``predict`` (seconds of each row) fitted to half of the rows, with the error on the others."""
    from scipy.optimize import least_squares

    start, low, high = (np.array(fit, dtype=np.float64) for fit in (form.start, form.low, form.high))
    free = low < high
    measured = rows.time_s.to_numpy(dtype=np.float64)
    chosen = np.argsort(np.argsort(measured)) % 2 == 0  # every other one by length: both halves span all sizes

    def constants(values: Floats) -> F:
        whole = start.copy()
        whole[free] = values
        return form.kind(*whole.tolist())

    def misfit(values: Floats) -> Floats:
        logarithms: Floats = np.log(predict(constants(values))[chosen] / measured[chosen])
        return logarithms

    found = least_squares(
        misfit,
        start[free],
        bounds=(low[free], high[free]),
        x_scale="jac",
        loss="soft_l1",
        f_scale=_LOSS_SCALE,
    )
    best = constants(found.x)
    error = 100 * np.abs(predict(best) / measured - 1)[~chosen]
    summary = (float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.9)))
    return Entry(best, f"{rows.backend.iloc[0]} {rows.version.iloc[0]}", len(measured), summary)


def _fit_gemm(rows: pd.DataFrame) -> Found[GemmFit]:
    """Products of training sizes, TensorRT-LLM: its cuBLASLt and CUTLASS kernels are those of training."""
    large = (rows.m >= 256) & (rows[["n", "k"]].min(axis=1) >= 128) & (rows.m % 2 == 0)
    found = {}
    for chip, number_format, group in _groups(rows[large & (rows.backend == "trtllm")], "dtype"):
        found[family(chip.name), number_format] = _gemm(chip, number_format, group)
    return found | _micro_scaled(found)


def _micro_scaled(found: Found[GemmFit]) -> Found[GemmFit]:
    """MXFP8, which no table holds in training's form.

    Blackwell's units scale blocks of 32 at the rate of plain FP8, and cuBLASLt multiplies both; the cast finds its
    scales by block as the block format's does. The products of the block format are those of serving kernels.
    """
    mixed = {}
    for (name, variant), block in found.items():
        if variant == "fp8-block":
            plain = found.get((name, "fp8-tensor"), block).fit
            fit = plain._replace(eta_cast=block.fit.eta_cast, tau_us=block.fit.tau_us)
            mixed[name, "mxfp8"] = Entry(fit, "prior: products of fp8-tensor, cast of fp8-block")
    return mixed


def _gemm(chip: Accelerator, number_format: str, rows: pd.DataFrame) -> Entry[GemmFit]:
    m, n, k = _columns(rows, "m n k")

    def predict(fit: GemmFit) -> Floats:
        return gemm_seconds(fitted_rates(fit, chip, _PRECISION[number_format]), m, n, k)

    form = _GEMM if number_format != "bf16" else _WITHOUT_CAST
    return _fitted(form, predict, rows)


def _fit_grouped(rows: pd.DataFrame, dense: Table[GemmFit]) -> Found[GemmFit]:
    """Both products of balanced experts.

    Training multiplies expert by expert (Transformer Engine's GroupedLinear on cuBLAS), serving in one kernel of its
    own. So only what grouping costs is taken from here: rows lost per expert and the rate at which weights are read.
    """
    enough = (rows.tokens >= 256) & (rows.tokens * rows.top_k / rows.experts >= 16)
    chosen = rows[enough & (rows.backend == "trtllm") & (rows.distribution == "balanced")]
    found = {}
    for chip, number_format, group in _groups(chosen, "dtype"):
        single = dense[family(chip.name)][number_format].fit
        found[family(chip.name), number_format] = _grouped(chip, number_format, single, group)
    return found | _micro_scaled(found)


def _grouped(chip: Accelerator, number_format: str, single: GemmFit, rows: pd.DataFrame) -> Entry[GemmFit]:
    """One timed call routes, permutes, multiplies, applies SwiGLU, multiplies and restores the order.

    What is no product is fitted along and dropped: passes of the tokens of the whole group over the HBM, and a
    fixed part.
    """
    tokens, hidden, ffn, experts, top_k, ep, tp = _columns(rows, "tokens hidden moe_ffn experts top_k ep tp")
    copies, local, width = tokens * top_k / ep, experts / ep, ffn / tp
    passing = 4 * tokens * hidden * (1 + top_k / ep) / chip.memory_bytes_per_s
    uncounted = {"seconds_per_cast": np.zeros(1), "tau_s": np.zeros(1)}  # in passes and fixed part

    def predict(fit: _GroupedCall) -> Floats:
        rates = replace(
            fitted_rates(single._replace(rows=fit.rows, eta_m=fit.eta_m), chip, _PRECISION[number_format]), **uncounted
        )
        products = gemm_seconds(rates, copies, 2 * width, hidden, groups=local)
        products = products + gemm_seconds(rates, copies, hidden, width, groups=local)
        return products + fit.passes * passing + fit.fixed_us * 1e-6

    call = _fitted(_GROUPED, predict, rows)
    gemm = single._replace(rows=call.fit.rows, eta_m=call.fit.eta_m)
    return Entry(gemm, call.source, call.shapes, call.error_pct)


def _fit_attention(rows: pd.DataFrame) -> Found[AttentionFit]:
    """Causal BF16 attention, SGLang: FlashAttention 2 and 3 are those of training; trtllm-gen on Blackwell."""
    chosen = rows[(rows.dtype == "bf16") & (rows.backend == "sglang") & (rows.kernel != "flashinfer")]
    chosen = chosen[chosen.seq_len >= 512]
    found = {}
    for chip, _, group in _groups(chosen, "dtype"):
        one = _attention(chip, group)
        found[family(chip.name), "gqa"] = one if chip.arch_major < 10 else _with_cudnn(family(chip.name), one)
    return found


def _fit_mla(rows: pd.DataFrame) -> Found[AttentionFit]:
    """Latent attention in its expanded form, BF16."""
    chosen = rows[(rows.dtype == "bf16") & (rows.seq_len >= 512)].rename(columns={"qk_dim": "head_dim"})
    chosen = chosen.assign(kv_heads=chosen.heads)
    groups = _groups(chosen, "dtype")
    return {
        (family(chip.name), "mla"): _with_cudnn(family(chip.name), _attention(chip, group)) for chip, _, group in groups
    }


def _with_cudnn(name: str, one: Entry[AttentionFit]) -> Entry[AttentionFit]:
    """Constants of TensorRT-LLM's kernels, at the speed of the cuDNN ones that training runs instead."""
    factor = _CUDNN.get(name, 1.0)
    if factor == 1:
        return one
    source = f"{one.source}, eta x {factor} for cuDNN (arXiv 2603.07685)"
    return replace(one, fit=one.fit._replace(eta=one.fit.eta * factor), source=source)


def _attention(chip: Accelerator, rows: pd.DataFrame) -> Entry[AttentionFit]:
    heads, kv_heads, qk, batch, length = _columns(rows, "heads kv_heads head_dim batch seq_len")
    latent = "v_dim" in rows
    v = _columns(rows, "v_dim")[0] if latent else qk
    shape = AttentionShape(batch * length, np.ones(1), heads, kv_heads, qk, v)
    flops = batch * length**2 * heads * (qk + v)

    def predict(fit: AttentionFit) -> Floats:
        return attention_seconds(fit, chip, shape, flops)

    return _fitted(_MLA if latent else _ATTENTION, predict, rows)


def _fit_collectives(rows: pd.DataFrame) -> Found[CollectiveFit]:
    """NCCL in one node, floors and payloads; between them NCCL changes protocol, which no training buffer meets.

    INT8 all-reduces go round the ring; those of FP16 on eight GPUs of Hopper or newer go through the switch.
    """
    rows = rows[(rows.bytes <= _FLOOR_BYTES) | (rows.bytes >= _PAYLOAD_BYTES)]
    switched = (rows.op == "all_reduce") & (rows.dtype == "fp16") & (rows.n_gpus == 8)
    operation = rows.op.where(~switched, "all_reduce_nvls")
    found = {}
    for chip, name, group in _groups(rows.assign(op=operation), "op"):
        if name != "all_reduce_nvls" or chip.arch_major >= 9:
            found[family(chip.name), name] = _collective(chip, name, group)
    return found


def _collective(chip: Accelerator, operation: str, rows: pd.DataFrame) -> Entry[CollectiveFit]:
    ranks, whole = _columns(rows, "n_gpus bytes")
    passes = 2 if operation.startswith("all_reduce") else 1
    sent = passes * whole * (ranks - 1) / ranks

    def predict(fit: CollectiveFit) -> Floats:
        rate = domain_rate(fit, chip.link_bytes_per_s, ranks)
        return latency_seconds(fit, ranks) + transfer_seconds(sent, rate, fit.ramp_us * 1e-6)

    return _fitted(_IN_SWITCH if operation == "all_reduce_nvls" else _COLLECTIVE, predict, rows)


def _fit_dispatch(rows: pd.DataFrame) -> Found[DispatchFit]:
    """DeepEP's combine in one node: BF16, as training sends both ways."""
    chosen = rows[(rows.op == "combine") & (rows.nodes == 1) & (rows.sms == _DISPATCH_SMS)]
    chosen = chosen.assign(op="deepep")
    return {(family(chip.name), "deepep"): _dispatch(group) for chip, _, group in _groups(chosen, "op")}


def _dispatch(rows: pd.DataFrame) -> Entry[DispatchFit]:
    tokens, hidden, ranks = _columns(rows, "tokens hidden n_gpus")
    experts, top_k = rows.experts.to_list(), rows.top_k.to_list()
    targets = [distinct_targets(r, e, k) for r, e, k in zip(ranks, experts, top_k, strict=True)]
    sent = 2 * tokens * hidden * np.array(targets) * (ranks - 1) / ranks

    def predict(fit: DispatchFit) -> Floats:
        return fit.latency_us * 1e-6 + transfer_seconds(sent, fit.gb_s * 1e9, fit.ramp_us * 1e-6)

    return _fitted(_DISPATCH, predict, rows)
