"""Time of a Mamba-2 mixer.

Shape letters:  B = jobs.
"""

from __future__ import annotations

import numpy as np

from simulator.compute.tally import PartTime, Tally, sharded_tokens
from simulator.job import Graph, Jobs, has, tokens_per_rank
from simulator.kernels import GemmRates
from simulator.physics import Physics
from simulator.recording import recorded

_CHUNK = 128  # tokens scanned together. Source: NVIDIA/Megatron-LM megatron/core/ssm/mamba_mixer.py


@recorded
def mamba_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """Mamba-2 mixer: projections as GEMMs, a convolution and a gated norm bound by memory, the chunked scan.

    Scan FLOPs of a token: the scores of its chunk for each group, and for each channel the chunk's weighted sum,
    the state's update and its read-out.  **Source:** arXiv 2405.21060 section 6 (SSD).
    """
    shape, tally = jobs.model, Tally(jobs, physics)
    rows, h = tokens_per_rank(jobs), np.asarray(float(shape.hidden))
    inner = shape.mamba_heads * shape.mamba_head_dim / jobs.tp
    state = shape.mamba_groups * shape.mamba_state / jobs.tp
    tally.memory(8 * h * sharded_tokens(jobs), kernels=2)
    tally.gemm(rates, rows, 2 * inner + 2 * state + shape.mamba_heads / jobs.tp, h)
    tally.memory((12 * inner + 8 * state) * rows, kernels=6)
    tally.scan(rows * 2 * (inner * (_CHUNK + 2 * shape.mamba_state) + state * _CHUNK))
    tally.gemm(rates, rows, h, inner)
    tally.launches(18.0, has(jobs.cuda_graph, Graph.MAMBA))
    return tally.done()
