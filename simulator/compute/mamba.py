"""Time of a Mamba-2 mixer.

Shape letters:  B = jobs.
"""

from __future__ import annotations

import numpy as np

from simulator.compute.tally import PartTime, Tally, sharded_tokens
from simulator.job import Graph, Jobs, has, tokens_per_rank
from simulator.kernels import GemmRates
from simulator.physics import Physics


def mamba_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """Mamba-2 mixer: projections as GEMMs; convolution and chunked scan bound by memory traffic."""
    shape, tally = jobs.model, Tally(jobs, physics)
    rows, h = tokens_per_rank(jobs), np.asarray(float(shape.hidden))
    inner = shape.mamba_heads * shape.mamba_head_dim / jobs.tp
    state = 2 * shape.mamba_groups * shape.mamba_state / jobs.tp
    tally.memory(8 * h * sharded_tokens(jobs), kernels=2)
    tally.gemm(rates, rows, 2 * inner + state + shape.mamba_heads / jobs.tp, h)
    tally.memory(24 * (inner + state) * rows, kernels=6)
    tally.gemm(rates, rows, h, inner)
    tally.launches(18.0, has(jobs.cuda_graph, Graph.MAMBA))
    return tally.done()
