"""Time of a pipeline schedule in closed form.

Shape letters:  B = jobs,  P = pipeline stages of the deepest job (zero-padded).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.job import Ints

Floats = NDArray[np.float64]


def pipeline_seconds(stage: Floats, microbatches: Ints, vpp: Ints) -> Floats:
    """Seconds from the first forward to the last backward with free transfers, shape (B,).

    Args:
        stage: forward plus backward of one micro-batch on each stage, shape (B, P), seconds.
        microbatches, vpp: per job, shape (B,).

    The slowest stage works through all micro-batches; before its first and after its last one, a micro-batch
    crosses the other stages once, or one of ``vpp`` chunks of them when interleaved. Exact for even stages, an
    upper bound for uneven ones (tested against `simulator.events`).
    **Source:** arXiv 2104.04473 section 2.2, bubble (p-1)/(v m); uneven stages derived here.
    """
    slowest, total = stage.max(axis=1), stage.sum(axis=1)
    seconds: Floats = microbatches * slowest + (total - slowest) / vpp
    return seconds


def exposed_sends(microbatches: Ints, pp: Ints, vpp: Ints, overlapped: NDArray[np.bool_]) -> Floats:
    """Transfer times that lengthen a step, as a count of transfers between neighbouring stages, shape (B,).

    Overlapped interleaving pays for filling and draining only, 2 (p v - 1). In plain 1F1B no stage has slack:
    2 m (p - 1) / p in the steady state and 2 (p - 2) at the ends. Interleaved without overlap every chunk's pass
    waits for its own. **Source:** derived; the first two equal `simulator.events` for even stages and m a
    multiple of p.
    """
    plain = np.where(microbatches > 1, 2 * microbatches * (pp - 1) / pp + 2 * (pp - 2), 2 * (pp - 1))
    blocking = 2.0 * vpp * microbatches
    interleaved = np.where(overlapped, 2.0 * (pp * vpp - 1), blocking)
    return np.where(pp > 1, np.where(vpp > 1, interleaved, plain), 0.0)
