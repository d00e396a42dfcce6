"""The architecture of a model and its layers by kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """The architecture of one model. Counts of 0 (or None) mean the part is absent.

    Attributes:
        name: key of the registry, or ``custom``.
        layers: decoder layers, MTP layers not counted.  hidden, ffn (dense MLP width), vocab: widths.
        heads, kv_heads, head_dim: attention; for MLA ``kv_heads`` equals ``heads``.
        attention: ``gqa`` (MHA included) or ``mla``.
        q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim: MLA ranks and head sizes.
        gated_mlp: three MLP matrices (SwiGLU) instead of two.
        experts, top_k, moe_ffn: routed experts.  shared_ffn: summed width of the shared experts.
        first_dense_layers: leading layers with a dense MLP instead of experts.
        mtp_layers: multi-token-prediction layers.
        tied_embeddings: embedding and output head share one matrix.
        qkv_bias, out_bias, linear_bias, expert_bias, router_bias: bias terms.
        qk_norm: ``none``, ``per_head``, ``full_dim`` or ``lora``.
        norm_bias: LayerNorm (weight and bias) instead of RMSNorm.
        rotary: queries and keys are rotated (RoPE); off for ALiBi and learned positions.
        learned_positions: rows of a learned position table (0 for none).
        sliding_window, sliding_every: window in tokens, and every how many layers one has it.
        sinks: one learned attention-sink logit per head.
        index_heads, index_head_dim, index_topk: sparse-attention indexer (DSA).
        hybrid: pattern of a Mamba/attention/MoE hybrid, '' for a plain transformer.
        mamba_heads, mamba_head_dim, mamba_state, mamba_groups, mamba_conv: Mamba-2 mixer of hybrids.
        moe_latent: width the experts work at (0: hidden).
        max_seq: longest sequence the release supports.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    attention: str = "gqa"
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_dim: int = 0
    qk_rope_dim: int = 0
    v_dim: int = 0
    gated_mlp: bool = True
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    first_dense_layers: int = 0
    mtp_layers: int = 0
    tied_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    linear_bias: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    qk_norm: str = "none"
    norm_bias: bool = False
    rotary: bool = True
    learned_positions: int = 0
    sliding_window: int = 0
    sliding_every: int = 0
    sinks: bool = False
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    hybrid: str = ""
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state: int = 0
    mamba_groups: int = 0
    mamba_conv: int = 0
    moe_latent: int = 0
    max_seq: int = 0


@dataclass(frozen=True)
class LayerKinds:
    """How many layers of each kind a model has (MTP layers apart). In a hybrid every layer is one mixer."""

    attention: int
    dense: int
    moe: int
    mamba: int
    norms: int


def layer_kinds(shape: ModelShape) -> LayerKinds:
    """The layers of ``shape`` by kind; ``norms`` counts their normalisations.

    Raises:
        ValueError: a hybrid pattern with letters other than ``M``, ``*``, ``E`` and ``-`` (dense MLP).
    """
    if shape.hybrid:
        if set(shape.hybrid) - set("M*E-"):
            raise ValueError(f"hybrid pattern {shape.hybrid!r}: only the letters M, *, E and - are known")
        count = shape.hybrid.count
        return LayerKinds(count("*"), count("-"), count("E"), count("M"), norms=len(shape.hybrid))
    dense = shape.first_dense_layers if shape.experts else shape.layers
    return LayerKinds(shape.layers, dense, shape.layers - dense, 0, norms=2 * shape.layers)
