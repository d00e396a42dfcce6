"""Model shapes, their parameters and their FLOPs.

Counting conventions: a parameter count is exact; a FLOP is one multiplication or one addition (a multiply-add
is two), attention counts the lower triangle only (half the square), and the optimizer counts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from simulator.hardware import load_yaml, nearest


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
        learned_positions: rows of a learned position table (0 for RoPE).
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
class Published:
    """A model's printed parameter counts.

    Attributes:
        total_b, active_b: counts in 1e9, all parameters and those one token uses.
        convention: what they count.
        digit_b: value of the last printed digit of total and active, in 1e9.
        nominal: the source contradicts its own configuration; good for order of magnitude.
        source: where counts and shape come from.  note: what a reader should know.
    """

    total_b: float
    active_b: float
    convention: str
    digit_b: tuple[float, float]
    source: str
    note: str = ""
    nominal: bool = False


@cache
def _registry() -> Mapping[str, tuple[ModelShape, Published]]:
    registry = {}
    for name, entry in load_yaml("models.yaml").items():
        facts = entry.pop("published")
        published = Published(source=entry.pop("source"), note=entry.pop("note", ""), **facts)
        shape = ModelShape(name=name, **entry)
        registry[name] = (shape, replace(published, digit_b=tuple(facts["digit_b"])))
    return MappingProxyType(registry)


@cache
def models() -> Mapping[str, ModelShape]:
    """Every known model shape by name, read-only; facts and sources are in ``data/models.yaml``."""
    return MappingProxyType({name: shape for name, (shape, _) in _registry().items()})


def model(name: str) -> ModelShape:
    """The shape called ``name`` (case does not matter).

    Raises:
        ValueError: not known; the message names the nearest ones.
    """
    known = models()
    if name.lower() in known:
        return known[name.lower()]
    raise ValueError(f"model {name!r} is not known: did you mean {nearest(name, known)}?")


def published(name: str) -> Published:
    """The printed parameter counts of the model called ``name``, with their source.

    Raises:
        ValueError: not known.
    """
    return _registry()[model(name).name][1]


def identify(shape: ModelShape) -> str | None:
    """Name of the registered model that ``shape`` is, or None.

    The name and the longest sequence may differ, the MTP layers may have been dropped and the vocabulary may
    have been padded up (by less than 1 %, which covers every multiple frameworks pad to).
    """
    for name, known in models().items():
        mtp_layers = 0 if shape.mtp_layers == 0 else known.mtp_layers
        padded = known.vocab <= shape.vocab <= 1.01 * known.vocab + 1024
        vocab = shape.vocab if padded else known.vocab
        if (
            replace(known, name=shape.name, max_seq=shape.max_seq, mtp_layers=mtp_layers, vocab=vocab)
            == shape
        ):
            return name
    return None
