"""Time of a mixture of experts without its dispatch: router, permutation, grouped GEMMs, shared experts.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.compute.mlp import dense_mlp
from simulator.compute.tally import Floats, PartTime, Tally, sharded_tokens
from simulator.job import Bools, Graph, Jobs, Recompute, has, is_narrow, once, tokens_per_rank
from simulator.kernels import GemmRates, gemm_rates
from simulator.models import ModelShape
from simulator.physics import Physics
from simulator.recording import recorded

# Bytes moved for each element of the first product, forward, and the backward pass over it, where the activation is
# a chain of element-wise kernels: clamps, gate, probability (both biases apart); or ReLU, square, probability.
# Source: operations of NVIDIA/Megatron-LM megatron/core/transformer/moe/experts.py (TEGroupedMLP), counted.
_CLAMPED_GATE_BYTES = 22.0
_BIAS_BYTES = 22.0
_SQUARED_RELU_BYTES = 20.0
_CHAIN_BACKWARD = 2.2


@once
def routing_imbalance(jobs: Jobs, physics: Physics) -> Floats:
    """Load of the busiest expert rank over the mean, shape (B,); 1 when balance is forced or EP is 1.

    Expert capacity bounds it. **Source:** Qwen3-235B, forced against learned balance (Megatron-MoE-ModelZoo).
    """
    learned = 1 + physics.imbalance_per_doubling * np.log2(jobs.ep)
    capped = np.where(jobs.capacity_factor > 0, np.maximum(jobs.capacity_factor, 1.0), np.inf)
    return np.where(jobs.force_balance, 1.0, np.minimum(learned, capped))


@once
def expert_copies(jobs: Jobs) -> Floats:
    """Routed token copies one rank computes for one micro-batch under even routing, shape (B,)."""
    return tokens_per_rank(jobs) / jobs.tp * jobs.model.top_k * jobs.etp


@once
def tokens_per_expert(jobs: Jobs) -> Floats:
    """Rows of one expert's GEMM for one micro-batch under even routing, shape (B,); 0 without experts."""
    if not jobs.model.experts:
        return np.zeros(jobs.size)
    return expert_copies(jobs) * jobs.ep / jobs.model.experts


def expert_width(shape: ModelShape) -> int:
    """Width (elements) at which tokens travel to and through the experts: the hidden size or a latent one."""
    return shape.moe_latent or shape.hidden


@recorded
def moe_time(jobs: Jobs, physics: Physics, rates: GemmRates, plain: GemmRates) -> PartTime:
    """Router, shared and routed experts of one layer with its norm, seconds, shape (B,); without dispatch."""
    shape, tally = jobs.model, Tally(jobs, physics)
    bits = jobs.recompute
    whole = has(bits, Recompute.MOE)
    h, local = float(shape.hidden), sharded_tokens(jobs)
    tally.memory(8 * h * local, kernels=2, replayed=whole | has(bits, Recompute.LAYERNORM))
    tally.gemm(plain, local, np.asarray(float(shape.experts)), np.asarray(h), replayed=whole)
    scoring = np.where(jobs.router_fusion, 16.0, 48.0) * shape.experts * local
    tally.memory(scoring, kernels=4, replayed=whole)
    if shape.moe_latent:
        width = np.asarray(float(shape.moe_latent))
        tally.gemm(rates, local, width, np.asarray(h), replayed=whole)
        tally.gemm(rates, local, np.asarray(h), width, replayed=whole)
    if shape.shared_ffn:
        before = tally.sums["forward"]
        dense_mlp(tally, rates, shape.shared_ffn, whole | has(bits, Recompute.SHARED_EXPERTS))
        tally.grow(cover=tally.sums["forward"] - before)
    _experts(tally, rates, gemm_rates(jobs, physics, grouped=True), whole)
    router = np.where(jobs.router_fusion, 8.0, 14.0)
    tally.launches(router, has(jobs.cuda_graph, Graph.MOE_ROUTER) | has(jobs.cuda_graph, Graph.MOE))
    tally.launches(10.0, has(jobs.cuda_graph, Graph.MOE_PREPROCESS) | has(jobs.cuda_graph, Graph.MOE))
    each = np.where(jobs.grouped_gemm, 12.0, 6.0 + 6.0 * shape.experts / jobs.ep)
    tally.launches(each + np.where(jobs.permute_fusion, 4.0, 16.0), has(jobs.cuda_graph, Graph.MOE))
    static = has(jobs.cuda_graph, Graph.FULL_ITERATION) | has(jobs.cuda_graph, Graph.MOE) | (jobs.capacity_factor > 0)
    tally.grow(sync=np.where(static | (jobs.ep == 1), 0.0, physics.sync_s))
    return tally.done()


def _experts(tally: Tally, rates: GemmRates, grouped: GemmRates, whole: Bools) -> None:
    """Permutation, grouped GEMMs and activation of the routed experts of one rank."""
    jobs, shape, physics = tally.jobs, tally.jobs.model, tally.physics
    copies = expert_copies(jobs) * routing_imbalance(jobs, physics)
    local_experts = np.maximum(shape.experts / jobs.ep, 1.0)
    width, ffn = np.asarray(float(expert_width(shape))), shape.moe_ffn / jobs.etp
    traffic = np.where(jobs.permute_fusion, 1.0, physics.unfused_traffic)
    tally.memory(4 * 4 * width * copies * traffic / jobs.etp, kernels=4, fused=False, replayed=whole)
    fan = 2 if shape.gated_mlp else 1
    # Every further expert's product is a kernel of its own unless the whole group is fused; without grouping each
    # is a call of its own as well.
    each = (
        physics.expert_gemm_s + physics.expert_cast_s * is_narrow(jobs) + np.where(jobs.grouped_gemm, 0.0, rates.tau_s)
    )
    each = np.where(jobs.fused_experts, 0.0, each)
    dense, expert = (replace(one, tau_s=one.tau_s + each * (local_experts - 1)) for one in (rates, grouped))
    tally.gemm(dense, copies, fan * ffn, width, groups=local_experts, expert=expert, replayed=whole)
    _expert_activation(tally, copies, ffn, whole | has(jobs.recompute, Recompute.MOE_ACT))
    tally.gemm(dense, copies, width, ffn, groups=local_experts, expert=expert, replayed=whole)


def _expert_activation(tally: Tally, copies: Floats, ffn: Floats, replayed: Bools) -> None:
    """What lies between the two grouped GEMMs of the routed experts, unless it runs inside them.

    SwiGLU weighted by the router is one kernel. Biased, clamped gates (GPT-OSS) and squared ReLU (Nemotron) are
    chains of element-wise operations around FP32 probabilities.
    """
    shape, apart = tally.jobs.model, np.where(tally.jobs.fused_experts, 0.0, 1.0)
    fan = 2 if shape.gated_mlp else 1
    if shape.expert_bias or not shape.gated_mlp:
        # A fused product has the activation inside, but not the biases.
        moved = _CLAMPED_GATE_BYTES * apart + _BIAS_BYTES if shape.expert_bias else _SQUARED_RELU_BYTES * apart
        traffic = tally.physics.unfused_experts * moved * fan * ffn * copies
        tally.memory(traffic, kernels=12 * apart, backward=_CHAIN_BACKWARD, replayed=replayed)
    else:
        tally.memory(2 * (fan + 1) * ffn * copies * apart, kernels=apart, replayed=replayed)
