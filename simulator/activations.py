"""Activation bytes that one layer keeps between forward and backward, per token and rank.

Each kept tensor is one `Kept` row: what it weighs, which layers have it, and which recomputation or offload
drops it. Shapes: B jobs; a weight is bytes per token of a micro-batch on one rank, shape (B,).

**Source:** arXiv 2205.05198 section 4 for the dense layer with sequence parallelism; the tensors that
Transformer Engine and Megatron-Core 0.14 save for MLA and MoE layers, read in their modules. With attention
fused, BF16 and no dropout a dense gated layer keeps (8h + 4ad + 4gd + 6f) / (tp cp) bytes per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.job import Jobs, Offload, Precision, Recompute, hidden_shards
from simulator.memory_physics import MemoryPhysics

Floats = NDArray[np.float64]

ATTENTION, DENSE, MOE = "attention", "dense", "moe"  # which layers keep a tensor: all, or those with such an MLP

# Bytes per element of a GEMM input that is kept in the GEMM's own format; block scales included.
GEMM_INPUT_BYTES = {
    Precision.BF16: 2.0,
    Precision.FP16: 2.0,
    Precision.FP8_TENSORWISE: 1.0,
    Precision.FP8_DELAYED: 1.0,
    Precision.FP8_BLOCKWISE: 1.0 + 4 / 128,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}


@dataclass(frozen=True)
class Kept:
    """One kept tensor: its layers, its bytes per token, shape (B,), and what drops it."""

    layers: str
    bytes: Floats
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE


@dataclass(frozen=True)
class LayerActivations:
    """Bytes per token of one dense and one MoE layer, shapes (B,).

    Attributes:
        kept_dense, kept_moe: between forward and backward.  full_dense, full_moe: without recomputation and
            offload, which is what a layer holds while it is being recomputed.
    """

    kept_dense: Floats
    kept_moe: Floats
    full_dense: Floats
    full_moe: Floats


def layer_activations(jobs: Jobs, physics: MemoryPhysics) -> LayerActivations:
    """What one dense and one MoE layer keep per token of a micro-batch."""
    table = [*_attention(jobs), *_dense_mlp(jobs)] + (_moe(jobs, physics) if jobs.model.experts else [])
    kept, full = (
        dict.fromkeys((ATTENTION, DENSE, MOE), _zero(jobs)),
        dict.fromkeys((ATTENTION, DENSE, MOE), _zero(jobs)),
    )
    for row in table:
        # FULL is not looked at here: it keeps whole layers or nothing but their input (see `kept_fully_recomputed`).
        dropped = ((jobs.recompute & row.recompute) | (jobs.offload & (row.offload | Offload.LAYER))) > 0
        kept[row.layers] = kept[row.layers] + np.where(dropped, 0.0, row.bytes)
        full[row.layers] = full[row.layers] + row.bytes
    return LayerActivations(
        kept_dense=kept[ATTENTION] + kept[DENSE],
        kept_moe=kept[ATTENTION] + kept[MOE],
        full_dense=full[ATTENTION] + full[DENSE],
        full_moe=full[ATTENTION] + full[MOE],
    )


def kept_fully_recomputed(jobs: Jobs) -> Floats:
    """Bytes per token that a fully recomputed layer keeps, its BF16 input, shape (B,)."""
    return np.where(jobs.offload & Offload.LAYER, 0.0, 2.0 * jobs.model.hidden / hidden_shards(jobs))


def routed_copies(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Expert inputs per token on the fullest rank, shape (B,): top_k, times imbalance or capacity, over tp.

    Expert tensor parallelism gathers the tokens of its ranks, which multiplies the copies by etp.
    """
    natural = np.where(jobs.force_balance | (jobs.ep == 1), 1.0, physics.routing_imbalance)
    load = np.where(jobs.capacity_factor > 0, jobs.capacity_factor, natural)
    copies: Floats = jobs.model.top_k * load * jobs.etp / jobs.tp
    return copies


def _attention(jobs: Jobs) -> list[Kept]:
    shape, tp, gemm_input = jobs.model, jobs.tp, _gemm_input(jobs)
    hidden = shape.hidden / hidden_shards(jobs)
    heads = shape.heads / tp
    # Softmax statistics in FP32 when fused; otherwise scores, softmax and its dropout mask, 5 bytes a pair.
    pairs = np.where(jobs.fused_attention, 4.0, 5.0 * jobs.seq_len / jobs.cp) * heads
    rows = [
        Kept(ATTENTION, 4.0 * hidden),  # inputs of both norms
        Kept(ATTENTION, 2 * gemm_input * hidden, Recompute.LAYERNORM),  # their outputs, which feed GEMMs
        Kept(ATTENTION, pairs, Recompute.CORE_ATTN),
    ]
    if shape.attention == "mla":
        qk_dim = shape.qk_nope_dim + shape.qk_rope_dim
        latents = 2 * (shape.q_lora_rank + shape.kv_lora_rank) + shape.qk_rope_dim  # before and after their norms
        rows.append(Kept(ATTENTION, 2.0 * latents / hidden_shards(jobs)))
        qkv, output = heads * (2 * qk_dim + shape.v_dim), heads * shape.v_dim
    else:
        groups = np.maximum(shape.kv_heads / tp, 1)  # fewer groups than ranks: each rank keeps one
        qkv, output = (heads + 2 * groups) * shape.head_dim, heads * shape.head_dim
    # The output serves fused attention's own backward in BF16, and the projection in the format of its GEMM.
    narrow_copy = np.where(gemm_input < 2.0, gemm_input, 0.0)
    return [
        *rows,
        Kept(
            ATTENTION,
            2.0 * qkv,
            Recompute.MLA_UP_PROJ if shape.attention == "mla" else Recompute.NONE,
            Offload.CORE_ATTN,
        ),
        Kept(ATTENTION, (2.0 + narrow_copy) * output, offload=Offload.ATTN_PROJ),
    ]


def _dense_mlp(jobs: Jobs) -> list[Kept]:
    ffn = jobs.model.ffn / jobs.tp
    up = 2 if jobs.model.gated_mlp else 1
    return [Kept(DENSE, 2.0 * up * ffn, Recompute.MLP), Kept(DENSE, _gemm_input(jobs) * ffn, Recompute.MLP)]


def _moe(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    shape, gemm_input = jobs.model, _gemm_input(jobs)
    copies = routed_copies(jobs, physics)
    up = 2 if shape.gated_mlp else 1
    ffn, shared = shape.moe_ffn / jobs.etp, shape.shared_ffn / jobs.tp
    tokens = 1 / hidden_shards(jobs)
    return [
        Kept(MOE, copies * gemm_input * shape.hidden, Recompute.MOE, Offload.EXPERT_FC1),  # dispatched input
        Kept(MOE, copies * 2.0 * up * ffn, Recompute.MOE, Offload.MOE_ACT),
        Kept(MOE, copies * gemm_input * ffn, Recompute.MOE | Recompute.MOE_ACT),  # activation, input of fc2
        Kept(MOE, copies * physics.expert_output_kept * 2.0 * shape.hidden, Recompute.MOE),
        Kept(MOE, (2.0 * up + gemm_input) * shared, Recompute.MOE | Recompute.SHARED_EXPERTS),
        Kept(MOE, tokens * 4.0 * shape.experts, Recompute.MOE),  # router logits and probabilities
    ]


def _gemm_input(jobs: Jobs) -> Floats:
    table = np.array([GEMM_INPUT_BYTES[Precision(value)] for value in range(len(Precision))])
    width: Floats = table[jobs.precision]
    return width


def _zero(jobs: Jobs) -> Floats:
    return np.zeros(jobs.size)
