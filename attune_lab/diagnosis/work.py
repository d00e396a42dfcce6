"""Where the arithmetic of a step goes, from the settings alone: what prices losses that no profile shows.

Counts are multiply-adds of one token's forward pass; only their ratios are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.recipe.shape import leading_dense_layers

SKEW_PER_DOUBLING = 0.16
"""What the busiest expert rank takes beyond the mean, per doubling of EP, under a learned router.
**Source:** yanring/Megatron-MoE-ModelZoo Qwen3-235B, forced against learned balance."""

EXPERT_COST = 1.3
"""Time of an expert layer over that of its multiply-adds elsewhere: small products, permutation, routing. A prior."""

POINTWISE = 0.04
"""Share of a forward pass that the norms or the activations of a layer take. They are bound by memory, so that they
do not appear among multiply-adds."""

_BACKWARD = 2.0  # over forward: a product each for the gradients of inputs and weights
_MODULES = {"core_attn": "scores", "mlp": "mlp", "moe": "experts", "mla_up_proj": "mla_up"}


def work(settings: Mapping[str, Any]) -> dict[str, float]:
    """Multiply-adds of one token's forward pass by part, the whole model; empty where the settings do not tell.

    ``scores`` (causal half), ``projections``, ``mla_up`` (the part of them that MLA can replay), ``mlp`` (dense layers
    and shared experts), ``experts`` (routed, at their cost), ``head``.

    **Source:** arXiv 2104.04473 appendix; arXiv 2405.04434 for MLA.
    """
    try:
        hidden, heads, layers = (int(settings[key]) for key in ("hidden", "heads", "num_layers"))
        per_layer = _attention(settings, hidden, heads)
        ffn, vocab = int(settings["ffn"]), int(settings["vocab_padded"])
        experts = settings.get("num_experts")
        dense = leading_dense_layers(str(settings["moe_layer_freq"]), layers) if experts else layers
        routed = int(settings["topk"]) * int(settings["moe_ffn"]) if experts else 0
    except (KeyError, TypeError, ValueError, UserError):
        return {}
    matrices = 3.0 if settings.get("swiglu") or settings.get("quick_geglu") else 2.0
    shared = (settings.get("shared_expert_size") or 0) if experts else 0
    return {
        **{part: layers * count for part, count in per_layer.items()},
        "mlp": matrices * hidden * (dense * ffn + (layers - dense) * shared),
        "experts": (layers - dense) * matrices * hidden * routed * EXPERT_COST * expert_skew(settings),
        "head": float(hidden * vocab),
    }


def _attention(settings: Mapping[str, Any], hidden: int, heads: int) -> dict[str, float]:
    """One layer's attention."""
    seq_len = int(settings["seq_len"])
    if settings.get("mla"):
        rope, nope, value = (int(settings[key]) for key in ("qk_pos_emb_head_dim", "qk_head_dim", "v_head_dim"))
        rank, query = int(settings["kv_lora_rank"]), heads * (nope + rope)
        low = settings.get("q_lora_rank")
        queries = low * (hidden + query) if low else hidden * query
        up = rank * heads * (nope + value) + (low * query if low else 0)
        projections = queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
        return {"scores": heads * (nope + rope + value) * seq_len / 2, "projections": projections, "mla_up": up}
    width = int(settings.get("kv_channels") or hidden // heads)
    projections = 2.0 * hidden * width * (heads + int(settings["kv_groups"]))
    return {"scores": float(heads * width * seq_len), "projections": projections, "mla_up": 0.0}


def total(parts: Mapping[str, float]) -> float:
    """The sum of `work`'s parts; ``mla_up`` is in ``projections`` already."""
    return sum(count for part, count in parts.items() if part != "mla_up")


def replayed(settings: Mapping[str, Any]) -> float:
    """Forward passes that recomputation adds to every step, 0 to 1: 1 where every layer is replayed."""
    level = settings.get("recompute_level") or 0
    if level == 3:
        return _replayed_layers(settings)
    parts = work(settings)
    whole = total(parts)
    modules = settings.get("recompute_modules") or ()
    if not level or not whole:
        return 0.0
    return min(sum(parts[_MODULES[m]] / whole if m in _MODULES else POINTWISE for m in modules), 1.0)


def _replayed_layers(settings: Mapping[str, Any]) -> float:
    """Share of the layers under full recomputation: ``recompute_num_layers`` of each virtual stage, if by blocks."""
    asked, split = settings.get("recompute_num_layers"), settings.get("stage_layers")
    if settings.get("recompute_method") != "block" or not asked or not split:
        return 1.0
    return float(min(asked * (settings.get("vpp") or 1) / max(*split, 1), 1.0))


def replayed_experts(settings: Mapping[str, Any]) -> float:
    """The same of the expert layers alone, whose replay repeats the dispatch."""
    level, modules = settings.get("recompute_level") or 0, settings.get("recompute_modules") or ()
    return _replayed_layers(settings) if level == 3 else float("moe" in modules)


def product_share(settings: Mapping[str, Any]) -> float:
    """Share of the multiply-adds that are matrix products with weights, not attention scores; 1 where unknown."""
    parts = work(settings)
    whole = total(parts)
    return 1 - parts["scores"] / whole if whole else 1.0


def expert_skew(settings: Mapping[str, Any]) -> float:
    """Tokens that the busiest expert rank is expected to take over the mean; 1 without EP or with forced balance."""
    ep = settings.get("ep") or 1
    if not settings.get("num_experts") or ep <= 1 or settings.get("force_load_balancing"):
        return 1.0
    return 1 + SKEW_PER_DOUBLING * math.log2(ep)


def expert_share(settings: Mapping[str, Any]) -> float:
    """Share of the computation that grows with the tokens of the busiest expert rank; 0 where nothing tells.

    The products alone: what an expert layer costs beyond them depends little on its tokens.
    """
    parts = work(settings)
    products = parts.get("experts", 0.0) / EXPERT_COST
    return products / total(parts) if products else 0.0
