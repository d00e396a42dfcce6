"""Training-speed metrics, one definition for the simulator, the log parsers and the reports.

Every argument may be a number or an array; arrays broadcast.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.hardware import Accelerator
from simulator.job import Precision
from simulator.models import ModelShape, flops_per_token

Floats = NDArray[np.float64]


def tokens_per_s_per_gpu(step_time_s: ArrayLike, gbs: ArrayLike, seq_len: ArrayLike, n_gpus: ArrayLike) -> Floats:
    """Tokens trained per second and GPU: ``gbs`` sequences of ``seq_len`` tokens in one step of the job."""
    tokens = np.asarray(gbs, dtype=np.float64) * np.asarray(seq_len)
    speed: Floats = tokens / (np.asarray(step_time_s, dtype=np.float64) * np.asarray(n_gpus))
    return speed


def model_flops_per_s_per_gpu(tokens_per_s: ArrayLike, shape: ModelShape, seq_len: ArrayLike) -> Floats:
    """Model FLOP/s per GPU at ``tokens_per_s`` per GPU; the count is `simulator.models.flops_per_token`."""
    rate: Floats = np.asarray(tokens_per_s, dtype=np.float64) * flops_per_token(shape, seq_len)
    return rate


def mfu(model_flops_per_s: ArrayLike, peak_flops: ArrayLike) -> Floats:
    """Model FLOPs utilisation: model FLOP/s per GPU over the dense peak it is held against.

    Raises:
        ValueError: a peak that is not positive, as where the accelerator does not support the number format.
    """
    peak = np.asarray(peak_flops, dtype=np.float64)
    if not np.all(peak > 0):
        raise ValueError("mfu: the peak must be positive, so name a number format that the accelerator supports")
    share: Floats = np.asarray(model_flops_per_s, dtype=np.float64) / peak
    return share


def peak_flops(accelerator: Accelerator, precision: ArrayLike) -> Floats:
    """Dense peak of the GEMMs' number format (`Precision` values, any shape), FLOP/s; 0 where unsupported."""
    peak: Floats = _peaks(accelerator)[np.asarray(precision, dtype=np.int64)]
    return peak


@cache
def _peaks(accelerator: Accelerator) -> Floats:
    """The peak of every `Precision`."""
    peaks = np.full(len(Precision), accelerator.peak_fp8_flops)
    peaks[[Precision.BF16, Precision.FP16]] = accelerator.peak_bf16_flops
    peaks[Precision.NVFP4] = accelerator.peak_fp4_flops
    return peaks
