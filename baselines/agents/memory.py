"""How much memory a layout takes, by the formulas an engineer works out on paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baselines.agents.cards import Facts

IN_WORDS = (
    "Formulas. Weights, gradients and optimizer take 6 + 12/d bytes per parameter of a GPU, d the ranks that share its "
    "optimizer state; dense parameters are split over tp and pp, experts over ep, etp and pp. Activations take, per "
    "layer and token, what the layer keeps for its backward pass, less what is computed again; tokens per GPU and "
    "micro-batch are mbs * seq_len / (tp * cp); the first stage holds pp micro-batches, with virtual stages "
    "pp * (1 + (pp - 1) / (pp * vpp)). Sizes must divide: tp * pp * cp and pp * ep * etp the GPUs, ep the experts, mbs "
    "times the data-parallel ranks the global batch; with virtual stages pp the number of micro-batches."
)
"""What `expected_bytes` and `thumb.divides` compute, for the reader of a prompt."""

FIXED_BYTES = 8e9
"""CUDA context, communicators, workspaces: a round figure of this project."""

Values = Mapping[str, Any]


def expected_bytes(values: Values, card: Facts) -> float:
    """Bytes on the first pipeline stage: weights, gradients and optimizer, activations, and `FIXED_BYTES`.

    Rough: layers are taken as equal; latent attention, optimizers that keep less than FP32, offloading, buffers of
    collectives and fragmentation are left out. Ratios between two layouts of one model are better than the figures.

    **Source:** 6 + 12/d bytes a parameter with the distributed optimizer over d ranks, Megatron-LM
    @docs/source/api-guide/dist_optimizer.md; activations kept a layer counted as in arXiv 2205.05198, section 4, with
    sequence parallelism; micro-batches in flight as in arXiv 2104.04473, section 2.2.
    """
    return _state_bytes(values, card) + _activation_bytes(values, card) + FIXED_BYTES


def _state_bytes(v: Values, card: Facts) -> float:
    m, gpus = card["model"], card["cluster"]["gpus"]
    tp, pp, ep, etp = (v.get(key) or 1 for key in ("tp", "pp", "ep", "etp"))
    gated = 3 if m.get("swiglu") else 2
    layers = m["num_layers"] / pp
    head = m.get("kv_channels") or m["hidden"] / m["heads"]
    attention = 2 * m["hidden"] * head * (m["heads"] + (m.get("kv_groups") or m["heads"]))
    dense_ffn = m.get("shared_expert_size", 0) if m.get("num_experts") else m["ffn"]
    dense = layers * (attention + gated * m["hidden"] * dense_ffn) / tp
    dense += m.get("vocab_size", 0) * m["hidden"] / tp
    experts = layers * m.get("num_experts", 0) * gated * m["hidden"] * m.get("moe_ffn", 0) / (ep * etp)
    copies, expert_copies = max(gpus / (tp * pp), 1), max(gpus / (pp * ep * etp), 1)
    return float(dense * (6 + 12 / copies) + experts * (6 + 12 / expert_copies))


def _activation_bytes(v: Values, card: Facts) -> float:
    m, gpus = card["model"], card["cluster"]["gpus"]
    tp, pp, cp, vpp, mbs = (v.get(key) or 1 for key in ("tp", "pp", "cp", "vpp", "mbs"))
    head = m.get("kv_channels") or m["hidden"] / m["heads"]
    attention = 4 * m["hidden"] + 4 * head * (m["heads"] + (m.get("kv_groups") or m["heads"]))
    norms = 4 * m["hidden"]
    if m.get("num_experts"):
        copies = m.get("topk", 1)
        ffn = copies * (4 * m["hidden"] + 6 * m.get("moe_ffn", 0)) + 6 * m.get("shared_expert_size", 0)
        act = copies * 2 * m.get("moe_ffn", 0)
    else:
        ffn, act = 2 * m["hidden"] + 6 * m["ffn"], 0.0
    kept = _kept(str(v.get("recompute", "none")), attention=attention, norms=norms, ffn=ffn, act=act)
    if v.get("recompute") == "full":
        kept = 2 * m["hidden"]
    micro = m["gbs"] / (mbs * max(gpus / (tp * pp * cp), 1))
    in_flight = min(pp * (1 + (pp - 1) / (pp * vpp) if vpp > 1 else 1), max(micro, 1))
    tokens = mbs * m["seq_len"] / (cp * tp)
    return float(tokens * kept * m["num_layers"] / pp * in_flight)


def _kept(level: str, *, attention: float, norms: float, ffn: float, act: float) -> float:
    """Bytes a token leaves behind in a layer when the modules named in ``level`` are computed again."""
    again = set(level.split("+"))
    kept = attention + norms + ffn
    if again & {"mlp", "moe"}:
        kept -= ffn
    elif "moe_act" in again:
        kept -= act
    return kept - norms if "layernorm" in again else kept
