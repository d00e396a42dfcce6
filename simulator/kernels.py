"""Seconds of one kernel: GEMM, attention, memory-bound operation.

Shape letters:  B = jobs.  m, n, k = rows, columns and depth of a GEMM, all local to one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hardware import Accelerator
from simulator.job import Jobs, Precision, present
from simulator.kernel_tables import AttentionFit, Entry, GemmFit, entry, kernel_tables
from simulator.physics import Physics
from simulator.recording import recorded

Floats = NDArray[np.float64]

AMPERE = 8  # compute capability, major number
_TILE = 128.0 * 256.0  # elements of the output one SM computes at a time
_QUERY_BLOCK = 128.0  # queries of one head an SM works on at a time


class _Format(NamedTuple):
    """A number format: its variant in the tables, bytes of an element, bytes moved to cast one from BF16."""

    variant: str
    width: float
    cast: float


_FORMAT = {
    Precision.BF16: _Format("bf16", 2.0, 0.0),
    Precision.FP16: _Format("bf16", 2.0, 0.0),
    Precision.FP8_TENSORWISE: _Format("fp8-tensor", 1.0, 5.0),  # read for the maximum, read again, written
    Precision.FP8_DELAYED: _Format("fp8-tensor", 1.0, 3.0),  # the scale is known from earlier steps
    Precision.FP8_BLOCKWISE: _Format("fp8-block", 1.0, 3.0),
    Precision.MXFP8: _Format("mxfp8", 1.0, 3.0),
    Precision.NVFP4: _Format("fp4", 0.5625, 2.5625),
}


@dataclass(frozen=True)
class GemmRates:
    """Constants of the GEMM formula for every job: shape (B,), or () where all jobs share them.

    Attributes:
        seconds_per_flop, seconds_per_byte: of matrix units and HBM.
        seconds_per_cast: of turning one BF16 element into the narrow format; 0 for BF16.
        seconds_per_copy: of writing it transposed as well; 0 where the matrix units do not need that.
        tau_s, k0, rows: fixed part, depth and rows per group lost, as in `GemmFit`.
        area: output elements lost at the start and the end of a kernel.
        width: bytes of one element of the number format.
        peak_flops: what the matrix units could do.
    """

    seconds_per_flop: Floats
    seconds_per_byte: Floats
    seconds_per_cast: Floats
    seconds_per_copy: Floats
    tau_s: Floats
    k0: Floats
    rows: Floats
    area: Floats
    width: Floats
    peak_flops: Floats


def fitted_rates(fit: GemmFit, chip: Accelerator, precision: Precision, speed: float = 1.0) -> GemmRates:
    """Rates of one number format, every field of shape ()."""
    variant, width, cast = _FORMAT[precision]
    peak = _peak(chip, precision)
    hbm = chip.memory_bytes_per_s
    # One scale per tensor holds for the transpose too, and Blackwell's units read FP8 in either order.
    transposes = width < 2 and (chip.arch_major < 10 or variant != "fp8-tensor")
    values = (
        1 / (fit.eta * peak * speed),
        1 / (fit.eta_m * hbm),
        cast / (fit.eta_cast * hbm),
        width * transposes / (fit.eta_cast * hbm),
        fit.tau_us * 1e-6,
        fit.k0,
        fit.rows,
        fit.waves * chip.sms * _TILE,
        width,
        peak,
    )
    return GemmRates(*(np.asarray(value, dtype=np.float64) for value in values))


def gemm_rates(jobs: Jobs, physics: Physics, *, high_precision: bool = False, grouped: bool = False) -> GemmRates:
    """Rates of the jobs' GEMMs.

    Args:
        jobs: batch of B jobs.
        physics: constants.
        high_precision: BF16 whatever the job's precision (router, output head).
        grouped: one call over many matrices (experts).

    Raises:
        ValueError: a job's number format is not supported by its accelerator.
    """
    chip = jobs.cluster.accelerator
    precisions = [int(Precision.BF16)] if high_precision else present(jobs.precision)
    found = {}
    for value in precisions:
        precision = Precision(value)
        constants = gemm_entry(chip, precision, grouped=grouped)
        if constants is None or not _peak(chip, precision) > 0:
            raise ValueError(f"{chip.name} has no {precision.name} matrix units: choose another precision")
        found[value] = fitted_rates(constants.fit, chip, precision, _speed(physics, chip, precision))
    if len(found) == 1:
        return found[precisions[0]]
    columns = np.zeros((len(GemmRates.__annotations__), len(Precision)))
    for value, rates in found.items():
        columns[:, value] = list(vars(rates).values())
    return GemmRates(*columns[:, jobs.precision])


def gemm_entry(chip: Accelerator, precision: Precision, *, grouped: bool = False) -> Entry[GemmFit] | None:
    """Constants of matrix products in this number format, with their provenance; None where there are none."""
    table = kernel_tables().grouped_gemm if grouped else kernel_tables().gemm
    return entry(table, chip, _FORMAT[precision].variant)


def _speed(physics: Physics, chip: Accelerator, precision: Precision) -> float:
    """Speed of training's products over the table's."""
    narrow = {
        "bf16": 1.0,
        "fp8-tensor": physics.gemm_speed_low,
        "fp8-block": physics.gemm_speed_block,
        "mxfp8": physics.gemm_speed_block,
        "fp4": physics.gemm_speed_fp4,
    }
    clock = physics.gemm_speed * (physics.ampere_clock if chip.arch_major == AMPERE else 1.0)
    return clock * narrow[_FORMAT[precision].variant]


def _peak(chip: Accelerator, precision: Precision) -> float:
    peaks = {"bf16": chip.peak_bf16_flops, "fp4": chip.peak_fp4_flops}
    return peaks.get(_FORMAT[precision].variant, chip.peak_fp8_flops)


@recorded
def gemm_seconds(rates: GemmRates, m: Floats, n: Floats, k: Floats, *, groups: Floats | float = 1.0) -> Floats:
    """Seconds of y[m,n] = x[m,k] W[k,n], shape (B,); with ``groups``, m rows are spread over that many matrices.

    T = sqrt(compute^2 + traffic^2) + cast + tau. Compute pays for the tiles' depth k0, for the waves of tiles that
    start and end the kernel and for half-filled tiles of each group; quantising the activations is a kernel of its
    own, whose time adds.  **Source:** form and constants fitted on ai-dynamo/aiconfigurator@095f58a.
    """
    compute = 2 * (k + rates.k0) * ((m + groups * rates.rows) * n + rates.area) * rates.seconds_per_flop
    traffic = (rates.width * (groups * n + m) * k + 2 * m * n) * rates.seconds_per_byte
    return _overlapped(compute, traffic) + rates.seconds_per_cast * m * k + rates.tau_s


@recorded
def weight_gradient_seconds(
    rates: GemmRates, m: Floats, n: Floats, k: Floats, *, groups: Floats | float = 1.0
) -> Floats:
    """Seconds of dW[n,k] = dy[m,n]^T x[m,k] added to the gradient buffer (read and write 4 bytes), shape (B,).

    Both operands were read in BF16 and cast for the other two products; what is left of a narrow format is to
    write the transposed copies.  **Source:** the same GEMM table with depth m; Transformer Engine's fused
    cast-transpose.
    """
    compute = 2 * (m / groups + rates.k0) * (groups * n * k + rates.area) * rates.seconds_per_flop
    traffic = (rates.width * m * (n + k) + 8 * groups * n * k) * rates.seconds_per_byte
    return _overlapped(compute, traffic) + rates.seconds_per_copy * m * (n + k) + rates.tau_s


def _overlapped(compute: Floats, traffic: Floats) -> Floats:
    """Time of two resources used at once: near the longer one, 1.4 times where both are equal."""
    seconds: Floats = np.sqrt(compute * compute + traffic * traffic)
    return seconds


@dataclass(frozen=True)
class AttentionShape:
    """What one rank's attention kernels see, one micro-batch; shapes (B,) or ().

    Attributes:
        queries: rows of queries, all sequences together;  calls: kernels they are spread over (context parallel).
        heads, kv_heads: on the rank;  qk, v: width of one head.
    """

    queries: Floats
    calls: Floats
    heads: Floats
    kv_heads: Floats
    qk: Floats | float
    v: Floats | float


def attention_fit(chip: Accelerator, kind: str) -> AttentionFit:
    """Constants of one kind of attention, ``gqa`` or ``mla``.

    Raises:
        ValueError: the kind has no constants.
    """
    return attention_entry(chip, kind).fit


def attention_entry(chip: Accelerator, kind: str) -> Entry[AttentionFit]:
    """The same with their provenance."""
    constants = entry(kernel_tables().attention, chip, kind)
    if constants is None:
        raise ValueError(f"{chip.name} has no constants for {kind} attention: add them to kernels.json")
    return constants


@recorded
def attention_seconds(
    fit: AttentionFit, chip: Accelerator, shape: AttentionShape, flops: Floats, *, speed: Floats | float = 1.0
) -> Floats:
    """Seconds of fused causal attention, forward, shape (B,); ``flops`` of scores and weighted sum, causal half.

    T = F (1 + d0/d) (1 + fill SMs / blocks) / (eta peak) + io traffic / HBM + calls tau, where blocks are the
    heads times 128-query blocks of one call: few heads on a rank or short sequences leave SMs idle.
    **Source:** form and constants fitted on ai-dynamo/aiconfigurator@095f58a attention and MLA tables.
    """
    width = shape.qk + shape.v
    rate = fit.eta * chip.peak_bf16_flops * speed / (1 + 2 * fit.d0 / width)
    blocks = shape.heads * shape.queries * (1 / _QUERY_BLOCK)
    compute = flops * ((1 + fit.fill * chip.sms / blocks) / rate)
    traffic = 2 * width * shape.queries * shape.calls * (shape.heads + shape.kv_heads)
    seconds: Floats = compute + traffic * (fit.io / chip.memory_bytes_per_s) + shape.calls * (fit.tau_us * 1e-6)
    return seconds


@recorded
def memory_seconds(jobs: Jobs, physics: Physics, traffic: Floats, *, kernels: Floats | float = 1.0) -> Floats:
    """Seconds of memory-bound kernels that together move ``traffic`` bytes, shape (B,).

    **Source:** bytes over the HBM rate plus a fixed part per kernel, as ai-dynamo/aiconfigurator@095f58a has it.
    """
    return traffic / memory_rate(jobs.cluster.accelerator, physics) + kernels * physics.memory_latency_s


def memory_rate(chip: Accelerator, physics: Physics) -> float:
    """Bytes per second that fused memory-bound kernels move."""
    share = physics.memory_eff * (physics.ampere_memory if chip.arch_major == AMPERE else 1.0)
    return share * chip.memory_bytes_per_s
