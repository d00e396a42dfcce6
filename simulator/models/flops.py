"""FLOPs per token by part.

A FLOP is one multiplication or one addition. Attention counts the lower triangle only (half the square), the
optimizer and element-wise operations count nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.models.shape import ModelShape, layer_kinds

Floats = NDArray[np.float64]


def layer_flops(shape: ModelShape, seq_len: ArrayLike) -> dict[str, Floats]:
    """Forward FLOPs per token of one layer, by part; a part counts only in the layers that have it.

    Args:
        seq_len: tokens per sequence, any shape S; every value has shape S.

    ``core_attention`` is the average over layers with and without a sliding window and includes the indexer's
    scores; ``experts`` are the ``top_k`` of one token, with a MoE layer's latent projections.

    **Source:** Megatron-LM megatron/training/training.py ``num_floating_point_operations``.
    """
    seq = np.asarray(seq_len, dtype=np.float64)
    hidden, matrices = shape.hidden, 3 if shape.gated_mlp else 2
    expert = 2.0 * matrices * (shape.moe_latent or hidden) * shape.moe_ffn
    per_token = {
        "attention_proj": 2.0 * _attention_weights(shape),
        "mamba": _mamba_flops(shape),
        "dense_mlp": 2.0 * matrices * hidden * shape.ffn,
        "router": 2.0 * hidden * shape.experts,
        "experts": shape.top_k * expert + 4.0 * hidden * shape.moe_latent,
        "shared_experts": 2.0 * matrices * hidden * shape.shared_ffn,
    }
    flops = {part: np.full(seq.shape, value) for part, value in per_token.items()}
    return flops | {"core_attention": _core_attention_flops(shape, seq)}


def flops_by_part(shape: ModelShape, seq_len: ArrayLike, *, mtp: bool = True) -> dict[str, Floats]:
    """Forward FLOPs per token of the whole model: the parts of `layer_flops`, ``logits`` and ``mtp``.

    Args:
        seq_len: tokens per sequence, any shape S; every value has shape S.
        mtp: whether the MTP layers (one layer, its input projection and the logits again, each) are trained.
    """
    one, kinds = layer_flops(shape, seq_len), layer_kinds(shape)
    layers = {
        "attention_proj": kinds.attention,
        "core_attention": kinds.attention,
        "mamba": kinds.mamba,
        "dense_mlp": kinds.dense,
        "router": kinds.moe,
        "experts": kinds.moe,
        "shared_experts": kinds.moe,
    }
    parts = {part: count * one[part] for part, count in layers.items()}
    parts["logits"] = np.full_like(one["experts"], 2.0 * shape.hidden * shape.vocab)
    mlp = one["experts"] + one["shared_experts"] if shape.experts else one["dense_mlp"]
    mtp_layer = one["attention_proj"] + one["core_attention"] + mlp + 4.0 * shape.hidden**2
    parts["mtp"] = shape.mtp_layers * mtp * (mtp_layer + parts["logits"])
    return parts


def flops_per_token(shape: ModelShape, seq_len: ArrayLike, *, mtp: bool = True) -> Floats:
    """Model FLOPs per trained token, forward and backward (twice the forward), shape of ``seq_len``.

    The router's matrix is left out and recomputation never counts: what Megatron-LM's printed TFLOP/s count,
    reproduced within 0.2 % for every plain transformer NVIDIA prints both TFLOP/s and tokens/s for. Its count
    for Nemotron-3-Nano is 7 % higher than ours, since it takes the Mamba width to be twice the hidden size.
    """
    parts = flops_by_part(shape, seq_len, mtp=mtp)
    forward = sum((value for part, value in parts.items() if part != "router"), np.zeros_like(parts["router"]))
    return 3.0 * forward


def _attention_weights(shape: ModelShape) -> int:
    """Weights of one attention's projections that multiply every token; the indexer's included."""
    h, heads = shape.hidden, shape.heads
    if shape.attention != "mla":
        return h * (heads + 2 * shape.kv_heads) * shape.head_dim + heads * shape.head_dim * h
    q_rank, kv_rank = shape.q_lora_rank, shape.kv_lora_rank
    q_dim = heads * (shape.qk_nope_dim + shape.qk_rope_dim)
    query = h * q_rank + q_rank * q_dim if q_rank else h * q_dim
    key_value = h * (kv_rank + shape.qk_rope_dim) + kv_rank * heads * (shape.qk_nope_dim + shape.v_dim)
    index_dim = shape.index_heads * shape.index_head_dim
    indexer = q_rank * index_dim + h * (shape.index_head_dim + shape.index_heads)
    return query + key_value + heads * shape.v_dim * h + indexer * (index_dim > 0)


def _core_attention_flops(shape: ModelShape, seq: Floats) -> Floats:
    """Scores and their product with the values for the context of an average token."""
    mla = shape.attention == "mla"
    qk_dim = shape.qk_nope_dim + shape.qk_rope_dim if mla else shape.head_dim
    v_dim = shape.v_dim if mla else shape.head_dim
    context = mean_context(seq, shape.index_topk)
    if shape.sliding_window:
        windowed = (shape.layers // shape.sliding_every) / shape.layers
        context = windowed * mean_context(seq, shape.sliding_window) + (1 - windowed) * context
    indexer = 2.0 * shape.index_heads * shape.index_head_dim * mean_context(seq, 0)
    flops: Floats = 2.0 * shape.heads * (qk_dim + v_dim) * context + indexer
    return flops


def mean_context(seq: Floats, window: int) -> Floats:
    """Mean number of tokens a token attends to, causal, at most ``window`` of them (0: no limit)."""
    reach = np.minimum(seq, window) if window else seq
    context: Floats = reach - reach**2 / (2.0 * seq)
    return context


def _mamba_flops(shape: ModelShape) -> float:
    """Projections and state-space scan (7 operations per channel and state) of one Mamba-2 mixer."""
    inner = shape.mamba_heads * shape.mamba_head_dim
    projected = 2 * inner + 2 * shape.mamba_groups * shape.mamba_state + shape.mamba_heads
    return 2.0 * shape.hidden * (projected + inner) + 7.0 * inner * shape.mamba_state
