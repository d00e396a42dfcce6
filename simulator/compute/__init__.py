"""Seconds of computation of each part of a model, for one micro-batch on one rank.

A transformer is counted in parts: ``attention``, ``mamba``, ``mlp`` and ``moe`` occur once or never in a layer,
``embedding`` on the first pipeline stage, ``head`` and ``mtp`` (the joining projection) on the last. A stage's time
is the sum over parts of how many it holds times what one costs.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from simulator.compute.attention import attention_time
from simulator.compute.ends import embedding_time, head_time, mtp_time
from simulator.compute.mamba import mamba_time
from simulator.compute.mlp import mlp_time
from simulator.compute.moe import expert_copies, expert_width, moe_time, routing_imbalance, tokens_per_expert
from simulator.compute.tally import PartTime, nothing, recomputed_share, sharded_tokens
from simulator.job import Jobs
from simulator.kernels import gemm_rates
from simulator.models import layer_kinds
from simulator.physics import Physics
from simulator.recording import recorded

__all__ = [
    "PartTime",
    "expert_copies",
    "expert_width",
    "nothing",
    "part_times",
    "recomputed_share",
    "routing_imbalance",
    "sharded_tokens",
    "tokens_per_expert",
]


@recorded
def part_times(jobs: Jobs, physics: Physics) -> dict[str, PartTime]:
    """Seconds of each part the model has, keyed by part name; every field has shape (B,).

    Raises:
        ValueError: a job's number format is not supported by its accelerator.
    """
    shape = jobs.model
    rates = gemm_rates(jobs, physics)
    plain = gemm_rates(jobs, physics, high_precision=True)
    kinds = layer_kinds(shape)
    parts = {"embedding": embedding_time(jobs, physics), "head": head_time(jobs, physics, plain)}
    if kinds.attention:
        parts["attention"] = attention_time(jobs, physics, rates)
    if kinds.mamba:
        parts["mamba"] = mamba_time(jobs, physics, rates)
    if kinds.dense or not shape.experts:
        parts["mlp"] = mlp_time(jobs, physics, rates)
    if shape.experts:
        parts["moe"] = moe_time(jobs, physics, rates, plain)
    if shape.mtp_layers:
        parts["mtp"] = mtp_time(jobs, physics, rates)
    return parts
