"""Time of what sits at the ends of a model: embedding, output head, the projection of multi-token prediction.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.compute.tally import PartTime, Tally, nothing, sharded_tokens
from simulator.job import Jobs, tokens_per_rank
from simulator.kernels import GemmRates
from simulator.physics import Physics
from simulator.recording import recorded

# Of products whose rows are an odd number of elements. Source: vTrain's head, 50,257 columns on an A100.
_ODD_SPEED = 0.33


@recorded
def embedding_time(jobs: Jobs, physics: Physics) -> PartTime:
    shape, tally = jobs.model, Tally(jobs, physics)
    tally.full = nothing(jobs)
    tally.memory(4.0 * shape.hidden * tokens_per_rank(jobs))
    shared = shape.tied_embeddings & (jobs.pp == 1)  # one matrix, counted by the head
    tally.grow(weights=np.where(shared, 0.0, shape.vocab * shape.hidden / jobs.tp))
    tally.launches(8.0, False)  # mask, clamp, two lookups, sum, dropout, transposition and the mask again
    return tally.done()


@recorded
def head_time(jobs: Jobs, physics: Physics, plain: GemmRates) -> PartTime:
    """Final norm, logits in BF16 and cross-entropy over FP32 logits (12 bytes per logit fused, 28 unfused).

    Matrix units want aligned rows: a vocabulary that is not padded to an even size per rank slows them down.
    """
    shape, tally = jobs.model, Tally(jobs, physics)
    tally.full = nothing(jobs)
    rows, columns = tokens_per_rank(jobs), shape.vocab / jobs.tp
    tally.memory(8.0 * shape.hidden * sharded_tokens(jobs))
    odd = (shape.vocab // jobs.tp) % 2 == 1
    aligned = replace(plain, seconds_per_flop=plain.seconds_per_flop / np.where(odd, _ODD_SPEED, 1.0))
    tally.gemm(aligned, rows, columns, np.asarray(float(shape.hidden)))
    fused = jobs.cross_entropy_fusion | jobs.compiled
    tally.memory(np.where(fused, 12.0, 28.0) * columns * rows, kernels=3, fused=False)
    tally.launches(np.where(fused, 10.0, 22.0), False)
    return tally.done()


@recorded
def mtp_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """The projection that joins hidden state and next embedding in front of a multi-token-prediction layer."""
    shape, tally = jobs.model, Tally(jobs, physics)
    h = np.asarray(float(shape.hidden))
    tally.memory(16 * h * sharded_tokens(jobs), kernels=3)
    tally.gemm(rates, tokens_per_rank(jobs), h / jobs.tp, 2 * h)
    tally.launches(8.0, False)
    return tally.done()
