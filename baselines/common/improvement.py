"""How much a trial is expected to improve on the best so far."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def expected_improvement(gain: Floats, spread: Floats) -> Floats:
    """E[max(0, G)] of gains G ~ N(gain, spread), elementwise.

    **Source:** Jones, Schonlau & Welch 1998, Efficient Global Optimization of Expensive Black-Box Functions, eq. 15.
    """
    from scipy.special import ndtr

    z = gain / spread
    return np.asarray(gain * ndtr(z) + spread * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
