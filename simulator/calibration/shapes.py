"""The model of a measurement row: a name of the registry, or the columns of a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.calibration.cells import InvalidCell, Unsupported, flag, whole
from simulator.models import ModelShape, models

_GATED = frozenset({"swiglu", "geglu", "reglu"})
_MAX_LAYERS = 10_000  # more are typing errors
_MAMBA_HEAD, _MAMBA_GROUPS, _MAMBA_CONV = 64, 8, 4
"""Mamba-2 mixers are twice as wide as the model, in heads of 64, eight groups, a convolution of 4 (arXiv 2405.21060,
2504.03624); rows name the state size alone."""


def row_shape(cells: Mapping[str, str], knobs: Mapping[str, str]) -> ModelShape:
    """The model a row trains; multi-token-prediction layers only where knob ``mtp`` asks for them.

    Raises:
        InvalidCell: a shape column that cannot be read.
        Unsupported: an unknown name without shape columns, or a mixer that is neither attention nor Mamba-2.
    """
    name = cells.get("model", "")
    known = models().get(name)
    if known is not None:
        return replace(known, mtp_layers=whole(knobs, "mtp", 0))
    if not (cells.get("layers") and cells.get("hidden")):
        raise Unsupported(f"model '{name}' is not in the registry and the row gives no shape columns")
    return _from_columns(name, cells, knobs)


def _from_columns(name: str, cells: Mapping[str, str], knobs: Mapping[str, str]) -> ModelShape:
    hidden, heads = whole(cells, "hidden"), whole(cells, "heads")
    experts = whole(cells, "experts", 0)
    shape = ModelShape(
        name=name or "custom",
        layers=whole(cells, "layers"),
        hidden=hidden,
        ffn=whole(cells, "ffn", 4 * hidden),
        heads=heads,
        kv_heads=whole(cells, "kv_heads", heads),
        head_dim=whole(cells, "head_dim", hidden // max(heads, 1)),
        vocab=whole(cells, "vocab", 51200),
        attention="mla" if knobs.get("attention") == "mla" else "gqa",
        q_lora_rank=whole(knobs, "q_lora_rank", 0),
        kv_lora_rank=whole(knobs, "kv_lora_rank", 0),
        qk_nope_dim=whole(knobs, "qk_nope_head_dim", 0),
        qk_rope_dim=whole(knobs, "qk_rope_head_dim", 0),
        v_dim=whole(knobs, "v_head_dim", 0),
        gated_mlp=knobs.get("activation", "swiglu") in _GATED,
        rotary=knobs.get("activation") != "gelu",  # models after GPT-2 have positions of their own, or ALiBi
        experts=experts,
        top_k=whole(cells, "top_k", min(experts, 2)),
        moe_ffn=whole(cells, "moe_ffn", whole(cells, "ffn", 0) if experts else 0),
        shared_ffn=whole(cells, "shared_ffn", 0),
        first_dense_layers=whole(knobs, "dense_layers", 0),
        mtp_layers=whole(knobs, "mtp", 0),
        tied_embeddings=flag(cells, "tied_embeddings", False),
    )
    _check(shape)
    return _hybrid(shape, knobs) if knobs.get("hybrid") else shape


def _check(shape: ModelShape) -> None:
    """Refuse a shape in which a part that must exist has no size, or that cannot be.

    Raises:
        InvalidCell: names the first such column.
    """
    needed = ["layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn"]
    needed += ["top_k", "moe_ffn"] if shape.experts else []
    needed += ["kv_lora_rank", "qk_nope_dim", "v_dim"] if shape.attention == "mla" else []
    for column in needed:
        if not getattr(shape, column):
            raise InvalidCell(f"column or knob '{column}' is 0 or blank; the model needs 1 or more")
    if shape.experts and shape.top_k > shape.experts:
        raise InvalidCell(f"column 'top_k' holds {shape.top_k}; the model has {shape.experts} experts")
    if shape.layers > _MAX_LAYERS:
        raise InvalidCell(f"column 'layers' holds {shape.layers}; {_MAX_LAYERS} is the most")


def _hybrid(shape: ModelShape, knobs: Mapping[str, str]) -> ModelShape:
    """``shape`` with the Mamba-2 mixers of knobs ``hybrid_pattern`` (M mixer, * attention, - MLP, E experts)."""
    pattern = knobs.get("hybrid_pattern", "")
    if not knobs["hybrid"].startswith("mamba") or not pattern or set(pattern) - set("M*E-"):
        raise Unsupported(
            f"hybrid '{knobs['hybrid'][:40]}': only Mamba-2 with a pattern of the letters M * E - is known"
        )
    return replace(
        shape,
        hybrid=pattern,
        layers=len(pattern),
        mamba_heads=2 * shape.hidden // _MAMBA_HEAD,
        mamba_head_dim=_MAMBA_HEAD,
        mamba_state=whole(knobs, "mamba_state_dim", 128),
        mamba_groups=_MAMBA_GROUPS,
        mamba_conv=_MAMBA_CONV,
    )
