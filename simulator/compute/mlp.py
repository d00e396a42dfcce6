"""Time of a dense MLP.

Shape letters:  B = jobs.
"""

from __future__ import annotations

import numpy as np

from simulator.compute.tally import PartTime, Tally, sharded_tokens, tensor_launches
from simulator.job import Bools, Graph, Jobs, Recompute, has, tokens_per_rank
from simulator.kernels import GemmRates
from simulator.physics import Physics
from simulator.recording import recorded


@recorded
def mlp_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    shape, tally = jobs.model, Tally(jobs, physics)
    replayed = has(jobs.recompute, Recompute.MLP)
    norm = replayed | has(jobs.recompute, Recompute.LAYERNORM)
    tally.memory(8.0 * shape.hidden * sharded_tokens(jobs), kernels=2, replayed=norm)
    dense_mlp(tally, rates, shape.ffn, replayed)
    tally.launches(8.0 + tensor_launches(jobs), has(jobs.cuda_graph, Graph.MLP))
    return tally.done()


def dense_mlp(tally: Tally, rates: GemmRates, width: int, replayed: Bools) -> None:
    """Both linear layers and the activation of an MLP of this width, split over TP."""
    jobs, shape = tally.jobs, tally.jobs.model
    rows, h, ffn = tokens_per_rank(jobs), np.asarray(float(shape.hidden)), width / jobs.tp
    fan = 2 if shape.gated_mlp else 1
    tally.gemm(rates, rows, fan * ffn, h, replayed=replayed)
    tally.memory(2 * (fan + 1) * ffn * rows, replayed=replayed)
    tally.gemm(rates, rows, h, ffn, replayed=replayed)
