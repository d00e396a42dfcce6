"""Seconds of one kernel: GEMM, attention, memory-bound operation.

Shape letters:  B = jobs.  m, n, k = rows, columns and depth of a GEMM, all local to one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.job import Jobs, Precision
from simulator.physics import Physics

Floats = NDArray[np.float64]


class GemmFit(NamedTuple):
    """T = 2mnk (1 + k0/k) / (eta_c peak) + bytes / (eta_m HBM) + tau."""

    eta_c: float
    eta_m: float
    tau_s: float
    k0: float


class AttentionFit(NamedTuple):
    """Forward efficiency eta s / (s + s0) of the BF16 peak at head size 128."""

    eta: float
    s0: float


# Sum form fitted on the AIConfigurator tables (TensorRT-LLM backend, m >= 1024, n, k >= 512). MI300X and
# MI355X are scaled to the achievable matmul rates of stas00/ml-engineering@744d01e (668 of 1300, 1565 of 2300
# TFLOP/s), FP8 rates assumed alike.
_HOPPER = {
    "bf16": GemmFit(0.802, 6.27, 3.1e-6, 70),
    "fp8-tensor": GemmFit(0.948, 0.56, 8.3e-6, 0),
    "fp8-block": GemmFit(0.749, 0.63, 3.9e-6, 0),
}
_GEMM: dict[str, dict[str, GemmFit]] = {
    "A100": {"bf16": GemmFit(0.909, 1.12, 6.6e-6, 26)},
    "H100": _HOPPER,
    "H800": _HOPPER,
    "H200": {
        "bf16": GemmFit(0.794, 8.0, 2.8e-6, 73),
        "fp8-tensor": GemmFit(0.919, 0.44, 8.8e-6, 0),
        "fp8-block": GemmFit(0.750, 0.45, 3.6e-6, 0),
    },
    "B200": {
        "bf16": GemmFit(0.678, 6.52, 2.7e-6, 0),
        "fp8-tensor": GemmFit(0.835, 0.49, 13.9e-6, 0),
        "fp8-block": GemmFit(0.741, 0.96, 6.3e-6, 0),
        "fp4": GemmFit(0.606, 0.55, 7.6e-6, 0),
    },
    "B300": {
        "bf16": GemmFit(0.717, 8.0, 2.3e-6, 0),
        "fp8-tensor": GemmFit(0.889, 0.51, 13.3e-6, 0),
        "fp8-block": GemmFit(0.834, 0.96, 6.0e-6, 0),
        "fp4": GemmFit(0.627, 0.51, 9.8e-6, 756),
    },
    "GB200": {
        "bf16": GemmFit(0.655, 7.29, 2.7e-6, 0),
        "fp8-tensor": GemmFit(0.791, 0.49, 13.5e-6, 0),
        "fp8-block": GemmFit(0.735, 0.90, 5.9e-6, 0),
        "fp4": GemmFit(0.594, 0.55, 7.6e-6, 0),
    },
    "GB300": {
        "bf16": GemmFit(0.790, 3.26, 2.8e-6, 0),
        "fp8-tensor": GemmFit(0.982, 0.50, 13.5e-6, 0),
        "fp8-block": GemmFit(0.870, 0.91, 5.9e-6, 0),
        "fp4": GemmFit(0.575, 0.52, 9.9e-6, 730),
    },
    "MI300X": {
        "bf16": GemmFit(0.55, 2.0, 5e-6, 70),
        "fp8-tensor": GemmFit(0.55, 0.5, 10e-6, 0),
        "fp8-block": GemmFit(0.55, 0.5, 10e-6, 0),
    },
    "MI355X": {
        "bf16": GemmFit(0.73, 2.0, 5e-6, 70),
        "fp8-tensor": GemmFit(0.73, 0.5, 10e-6, 0),
        "fp8-block": GemmFit(0.73, 0.5, 10e-6, 0),
    },
}
_FAMILY = {8: "A100", 9: "H100", 10: "B200"}  # by compute capability, for parts without a table of their own

# Causal flash attention, head size 128, by compute-capability major number: AIConfigurator context tables for 8 and
# 9, arXiv 2603.07685 for 10; 0 (CDNA3) is a prior.
_ATTENTION: dict[int, AttentionFit] = {
    8: AttentionFit(0.59, 700.0),
    9: AttentionFit(0.66, 1200.0),
    10: AttentionFit(0.70, 1300.0),
    0: AttentionFit(0.40, 1200.0),
}

_TILE = 110.0  # rows or columns, see `_padded`

_FORMAT = {
    Precision.BF16: ("bf16", 2.0),
    Precision.FP16: ("bf16", 2.0),
    Precision.FP8_TENSORWISE: ("fp8-tensor", 1.0),
    Precision.FP8_DELAYED: ("fp8-tensor", 1.0),
    Precision.FP8_BLOCKWISE: ("fp8-block", 1.0),
    Precision.MXFP8: ("fp8-block", 1.0),
    Precision.NVFP4: ("fp4", 0.5625),
}


@dataclass(frozen=True)
class GemmRates:
    """Constants of the GEMM formula for every job, shape (B,)."""

    flops_per_s: Floats
    bytes_per_s: Floats
    tau_s: Floats
    k0: Floats
    weight_bytes: Floats
    peak_flops: Floats


def gemm_rates(jobs: Jobs, physics: Physics, *, high_precision: bool = False) -> GemmRates:
    """Rates of the jobs' GEMMs.

    Args:
        jobs: batch of B jobs.
        physics: constants.
        high_precision: BF16 whatever the job's precision (router, output head).

    Raises:
        ValueError: a job's number format is not supported by its accelerator.
    """
    chip = jobs.cluster.accelerator
    peaks = {"bf16": chip.peak_bf16_flops, "fp4": chip.peak_fp4_flops}
    precision = np.full(jobs.size, int(Precision.BF16)) if high_precision else jobs.precision
    family = chip.name.split("-")[0]
    table = _GEMM.get(family) or _GEMM[_FAMILY.get(chip.arch_major, "MI300X")]
    columns = np.full((len(Precision), 6), np.nan)
    for value in np.unique(precision):
        name, weight = _FORMAT[Precision(value)]
        peak = peaks.get(name, chip.peak_fp8_flops)
        fit = table.get(name)
        if fit is None or not peak > 0:
            raise ValueError(f"{chip.name} has no {Precision(value).name} matrix units: choose another precision")
        speed = physics.gemm_speed * (1.0 if name == "bf16" else physics.gemm_speed_low)
        columns[value] = (
            fit.eta_c * peak * speed, fit.eta_m * chip.memory_bytes_per_s, fit.tau_s, fit.k0, weight, peak,
        )  # fmt: skip
    return GemmRates(*columns[precision].T)


def _padded(size: Floats) -> Floats:
    """A dimension of a GEMM with what its tiles waste: much below 128, little above 512.

    **Source:** H100 BF16 medians by n (.32 at 128, .56 at 256, .75 at 512, .81 at 1024), same tables.
    """
    return size + _TILE**2 / np.maximum(size, _TILE)


def gemm_seconds(rates: GemmRates, m: Floats, n: Floats, k: Floats, *, groups: Floats | float = 1.0) -> Floats:
    """Seconds of y[m,n] = x[m,k] W[k,n], shape (B,); with ``groups``, m rows are spread over that many matrices.

    The sum form holds for quantised formats too, whose activation cast (read 2 bytes, write and read the narrow
    format) is a separate kernel. Weight traffic of few rows per expert follows from the same bytes.
    **Source:** form and constants fitted on ai-dynamo/aiconfigurator@095f58a GEMM tables.
    """
    narrow = rates.weight_bytes < 2
    rows = groups * _padded(m / groups)
    activation = np.where(narrow, 2 + 2 * rates.weight_bytes, 2.0)
    traffic = rates.weight_bytes * groups * n * k + activation * m * k + 2 * m * n
    work = 2 * rows * _padded(n) * (_padded(k) + rates.k0)
    return work / rates.flops_per_s + traffic / rates.bytes_per_s + rates.tau_s


def weight_gradient_seconds(
    rates: GemmRates, m: Floats, n: Floats, k: Floats, *, groups: Floats | float = 1.0
) -> Floats:
    """Seconds of dW[n,k] = dy[m,n]^T x[m,k] added to the gradient buffer (read and write 4 bytes), shape (B,).

    Both operands were read in BF16 and cast for the other two products; what is left of a narrow format is to
    write the transposed copy and to read it.  **Source:** Transformer Engine's fused cast-transpose.
    """
    narrow = rates.weight_bytes < 2
    operand = np.where(narrow, 2 * rates.weight_bytes, 2.0)
    traffic = operand * m * (n + k) + 8 * groups * n * k
    depth = _padded(m / groups) + rates.k0
    work = 2 * groups * _padded(n) * _padded(k) * depth
    return work / rates.flops_per_s + traffic / rates.bytes_per_s + rates.tau_s


def attention_flops_per_s(jobs: Jobs, physics: Physics, head_dim: float, kernel_len: Floats) -> Floats:
    """Forward FLOP/s of fused causal attention, shape (B,), by the length one kernel call sees.

    **Source:** efficiency against length from ai-dynamo/aiconfigurator@095f58a attention tables (H100, d = 128:
    .27 at 1K, .42, .53, .58, .62 at 16K; d = 64 about 20 % lower).
    """
    chip = jobs.cluster.accelerator
    fit = _ATTENTION.get(chip.arch_major, _ATTENTION[10])
    by_head = (head_dim / (head_dim + 32.0)) / (128.0 / 160.0)
    eta = fit.eta * physics.attention_speed * min(by_head, 1.05) * kernel_len / (kernel_len + fit.s0)
    return chip.peak_bf16_flops * eta


def memory_seconds(jobs: Jobs, physics: Physics, traffic: Floats, *, kernels: Floats | float = 1.0) -> Floats:
    """Seconds of memory-bound kernels that together move ``traffic`` bytes, shape (B,).

    **Source:** bytes over the HBM rate plus a fixed part per kernel, as ai-dynamo/aiconfigurator@095f58a has it.
    """
    rate = physics.memory_eff * jobs.cluster.accelerator.memory_bytes_per_s
    return traffic / rate + kernels * physics.memory_latency_s
