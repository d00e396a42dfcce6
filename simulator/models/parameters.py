"""Exact parameter counts by part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from simulator.models.shape import ModelShape, layer_kinds


@dataclass(frozen=True)
class Parameters:
    """Exact parameter counts by part.

    Attributes:
        embedding, positions: the whole tables.  head: output matrix, 0 if tied to the embedding.
        attention, mamba: one such mixer.  dense_mlp: one dense MLP.
        router, shared_experts: of one MoE layer (``router`` with the latent projections).
        expert: one routed expert.  norm: one normalisation between parts; ``final_norm`` the last.
        mtp, mtp_active: all MTP layers, with all or only ``top_k`` experts.
        layers, layers_active: all decoder layers, with all or only ``top_k`` experts.
    """

    embedding: int
    positions: int
    head: int
    attention: int
    mamba: int
    dense_mlp: int
    router: int
    expert: int
    shared_experts: int
    norm: int
    final_norm: int
    mtp: int
    mtp_active: int
    layers: int
    layers_active: int

    @property
    def total(self) -> int:
        """Everything but the MTP layers."""
        return self.layers + self.embedding + self.positions + self.head + self.final_norm

    @property
    def active(self) -> int:
        """`total` with ``top_k`` instead of all experts."""
        return self.total - self.layers + self.layers_active


def counts_by(convention: str, parts: Parameters) -> tuple[int, int]:
    """Total and active parameters as a printed count with this convention counts them.

    ``all``: decoder layers, norms, embedding and head; ``all_active_without_input_embedding``: the same, but
    the looked-up embedding is not active; ``layers_only``: decoder layers; ``layers_and_mtp``: with MTP.
    """
    counts = {
        "all": (parts.total, parts.active),
        "all_active_without_input_embedding": (parts.total, parts.active - parts.embedding),
        "layers_only": (parts.layers, parts.layers_active),
        "layers_and_mtp": (parts.layers + parts.mtp, parts.layers_active + parts.mtp_active),
    }
    return counts[convention]


@cache
def parameters(shape: ModelShape) -> Parameters:
    """Exact parameter counts of ``shape`` by part.

    **Source:** the layer definitions of Megatron-Core 0.14 (core/transformer, core/ssm/mamba_mixer) and, for
    the sparse-attention indexer, transformers 5.24.0 models/glm_moe_dsa.
    """
    h, kinds = shape.hidden, layer_kinds(shape)
    norm = h * (1 + shape.norm_bias)
    attention = _mla_parameters(shape) if shape.attention == "mla" else _gqa_parameters(shape)
    mamba = _mamba_parameters(shape) if kinds.mamba else 0
    dense_mlp = _mlp_parameters(shape, h, shape.ffn, bias=shape.linear_bias)
    expert_width = shape.moe_latent or h
    expert = _mlp_parameters(shape, expert_width, shape.moe_ffn, bias=shape.expert_bias)
    router = h * shape.experts + shape.router_bias * shape.experts + 2 * h * shape.moe_latent
    shared = _mlp_parameters(shape, h, shape.shared_ffn, bias=False)

    def layers(experts: int) -> int:
        moe = router + shared + experts * expert
        mixers = kinds.attention * attention + kinds.mamba * mamba
        return mixers + kinds.dense * dense_mlp + kinds.moe * moe + kinds.norms * norm

    def mtp(experts: int) -> int:
        mlp = router + shared + experts * expert if shape.experts else dense_mlp
        # Two norms of its inputs and one of its output around a whole layer, and the 2h x h input projection.
        return shape.mtp_layers * (attention + mlp + 2 * norm + 3 * norm + 2 * h * h)

    return Parameters(
        embedding=shape.vocab * h,
        positions=shape.learned_positions * h,
        head=0 if shape.tied_embeddings else shape.vocab * h,
        attention=attention,
        mamba=mamba,
        dense_mlp=dense_mlp,
        router=router,
        expert=expert,
        shared_experts=shared,
        norm=norm,
        final_norm=norm,
        mtp=mtp(shape.experts),
        mtp_active=mtp(shape.top_k),
        layers=layers(shape.experts),
        layers_active=layers(shape.top_k),
    )


def _gqa_parameters(shape: ModelShape) -> int:
    h, d, heads, groups = shape.hidden, shape.head_dim, shape.heads, shape.kv_heads
    qkv = (heads + 2 * groups) * d
    norms = {"none": 0, "per_head": 2 * d, "full_dim": (heads + groups) * d}[shape.qk_norm]
    biases = shape.qkv_bias * qkv + shape.out_bias * h
    return h * qkv + heads * d * h + biases + norms + shape.sinks * heads


def _mla_parameters(shape: ModelShape) -> int:
    h, heads, q_rank, kv_rank = shape.hidden, shape.heads, shape.q_lora_rank, shape.kv_lora_rank
    q_dim = heads * (shape.qk_nope_dim + shape.qk_rope_dim)
    query = h * q_rank + q_rank * q_dim if q_rank else h * q_dim
    key_value = h * (kv_rank + shape.qk_rope_dim) + kv_rank * heads * (shape.qk_nope_dim + shape.v_dim)
    norms = (q_rank + kv_rank) * (shape.qk_norm == "lora")
    return query + key_value + heads * shape.v_dim * h + norms + _indexer_parameters(shape)


def _indexer_parameters(shape: ModelShape) -> int:
    """Queries from the q latent, one key with its LayerNorm, and a weight per index head."""
    if not shape.index_heads:
        return 0
    width = shape.index_heads * shape.index_head_dim
    key = shape.hidden * shape.index_head_dim + 2 * shape.index_head_dim
    return shape.q_lora_rank * width + key + shape.hidden * shape.index_heads


def _mlp_parameters(shape: ModelShape, width: int, ffn: int, *, bias: bool) -> int:
    up = 2 if shape.gated_mlp else 1
    return (up + 1) * width * ffn + (bias * (up * ffn + width) if ffn else 0)


def _mamba_parameters(shape: ModelShape) -> int:
    inner = shape.mamba_heads * shape.mamba_head_dim
    state = 2 * shape.mamba_groups * shape.mamba_state
    in_proj = shape.hidden * (2 * inner + state + shape.mamba_heads)
    conv = (inner + state) * (shape.mamba_conv + 1)
    # A, D and the time-step bias per head; the gated norm.
    return in_proj + conv + 3 * shape.mamba_heads + inner + inner * shape.hidden
