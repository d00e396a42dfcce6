"""Names of the factors that faults leave on a loss or a gradient norm."""

from __future__ import annotations

import math

COUNTS = (2, 3, 4, 6, 8, 16, 32, 64)
NEAR = 0.04
"""Log distance within which a ratio counts as a factor of `COUNTS`."""


def scale_of(log_ratio: float) -> str:
    """``4x`` or ``1/4 of`` where the ratio is near a count of ranks or micro-batches, else empty."""
    for count in COUNTS:
        if abs(abs(log_ratio) - math.log(count)) < NEAR:
            return f"{count}x" if log_ratio > 0 else f"1/{count} of"
    return ""


def norm_family(log_ratio: float) -> str:
    """The likely fault behind a factor exp(``log_ratio``) on a gradient norm.

    A norm made by noise alone grows as the root of the number of batches that were left out of the mean.
    """
    scale = scale_of(log_ratio)
    if math.isinf(log_ratio):
        return "gradients lost: detached graph, frozen parameters, zeroed buffers"
    if scale:
        return f"gradient scale: {scale} the baseline's, a sum taken for a mean or another divisor of the loss"
    if log_ratio > 0:
        for count in COUNTS[:5]:
            if abs(log_ratio - math.log(count) / 2) < NEAR:
                return f"missing reduction or repeated samples: the noise of 1/{count} of the batch"
        return "part of the gradients scaled up, counted twice or not averaged; fewer samples than the baseline"
    return "part of the gradients scaled down, lost or left out of a reduction"
