"""Time of a pipeline schedule in closed form.

Shape letters:  B = jobs,  P = pipeline stages of the deepest job (zero-padded).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.job import Ints, Jobs, Schedule

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


def in_flight(jobs: Jobs) -> Floats:
    """Micro-batches whose activations a stage holds at its peak, shape (B, P), 0 beyond a job's last stage.

    A micro-batch counts until its weight gradients are taken. Fractions of one where a stage works in chunks of
    1 / v, or, with DualPipe, in halves: one of its own stage's micro-batches and one of the mirrored stage's make
    a whole one of the rank's layers (`held_by_rank`).

    1F1B: p - r. Interleaved: 2 (p - r) - 1 + (v - 1) p chunks. ZB-H1 delays the weight gradients of stage r by r
    passes. ZB-V: p everywhere. DualPipe: p + 1 half ones. Its V: 2 p + 1 chunks of a half.

    **Source:** Megatron-LM core/pipeline_parallel/schedules.py, warm-up micro-batches; arXiv 2104.04473; 2401.10241
    Table 1; 2405.15362 section 4; 2412.19437 Table 2.
    """
    stage = np.arange(jobs.stage_layers.shape[1])[None, :]
    pp, vpp, count, schedule = (a[:, None] for a in (jobs.pp, jobs.vpp, jobs.num_microbatches, jobs.schedule))
    behind = np.maximum(pp - stage, 0)
    held = np.where(vpp > 1, (2 * behind - 1 + (vpp - 1) * pp) / vpp, behind)
    if np.any(schedule != Schedule.ONE_F_ONE_B):
        delayed = held + np.minimum(stage, pp) / vpp
        kinds = [schedule == kind for kind in (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_V)]
        double = [schedule == kind for kind in (Schedule.DUALPIPE, Schedule.DUALPIPE_V)]
        whole = np.broadcast_to(pp, held.shape)
        held = np.select(kinds + double, [np.inf * count, delayed, whole, (whole + 1) / 2, whole + 0.5], held)
    inside: Floats = np.where(stage < pp, np.clip(held, 0.0, count), 0.0)
    return inside


def held_by_rank(jobs: Jobs, stage_values: Floats) -> Floats:
    """What every pipeline rank holds, (B, P), of what a stage has: DualPipe's ranks hold the mirrored stage too.

    **Source:** arXiv 2412.19437 Table 2 (parameters twice).
    """
    twice = jobs.schedule == Schedule.DUALPIPE
    if not np.any(twice):
        return stage_values
    mirrored = np.clip(jobs.pp[:, None] - 1 - np.arange(stage_values.shape[1]), 0, None)
    other = np.take_along_axis(stage_values, mirrored, axis=1)
    held: Floats = stage_values + np.where(twice[:, None], other, 0.0)
    return held
