"""The model behind a recipe: from the flags of a Megatron-LM launch to a `ModelShape`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.registry import registry
from simulator.models import ModelShape, identify, models

_OTHER_ARCHITECTURES = (
    "--hybrid-", "--mamba-", "--linear-attention-", "--heterogeneous-layers-", "--encoder-num-layers",
    "--decoder-num-layers", "--bert-",
)  # fmt: skip
_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")


@cache
def defaults() -> Mapping[str, Any]:
    """Registry key -> the stack's default."""
    return {key: setting.default for key, setting in registry().items()}


def filled(recipe: Recipe) -> dict[str, Any]:
    """Every registry key with its stated value or the stack's default."""
    return {**defaults(), **recipe.settings}


def required(values: Mapping[str, Any], key: str) -> int:
    """The positive whole number the recipe must state under ``key``.

    Raises:
        UserError: it is missing or below 1; the message names the flag.
    """
    value = values[key]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    flag = registry()[key].flags[0]
    if value is None:
        raise UserError(f"the recipe does not state {flag}; add it, the model and the step are defined by it")
    raise UserError(f"{flag} is {value!r}; it must be a whole number of at least 1")


def shape_of(recipe: Recipe) -> ModelShape:
    """The architecture a recipe trains, named when it is a known model, else ``custom``.

    A recipe that leaves the vocabulary to its tokenizer has that of the known model its other numbers describe.

    Raises:
        UserError: a flag the shape needs is missing or describes an architecture that is not simulated.
    """
    foreign = next((flag for flag in recipe.carried if flag.startswith(_OTHER_ARCHITECTURES)), None)
    if foreign:
        raise UserError(
            f"{foreign} describes an architecture that is not simulated; give a decoder of attention layers"
        )
    values = filled(recipe)
    if not values["vocab_size"] and not values["padded_vocab_size"]:
        shapes = [_stated(values, vocab) for vocab in _vocabularies()]
        known = [shape for shape in shapes if shape.name != "custom" and shape.vocab == models()[shape.name].vocab]
        if len(known) == 1:
            return known[0]
    padded = values["vocab_size"] is None and values["padded_vocab_size"]
    return _stated(values, required(values, "padded_vocab_size" if padded else "vocab_size"))


@cache
def _vocabularies() -> tuple[int, ...]:
    return tuple(sorted({known.vocab for known in models().values()}))


def _stated(values: Mapping[str, Any], vocab: int) -> ModelShape:
    """The architecture the settings state, with a vocabulary of ``vocab``."""
    layers = required(values, "num_layers")
    gqa = _attention(values)
    shape = ModelShape(
        name="custom",
        layers=layers,
        hidden=required(values, "hidden"),
        ffn=_ffn(values),
        heads=required(values, "heads"),
        vocab=vocab,
        gated_mlp=bool(values["swiglu"] or values["quick_geglu"]),
        mtp_layers=values["mtp_num_layers"] or 0,
        tied_embeddings=not values["untie_embeddings"],
        qkv_bias=bool(values["add_qkv_bias"] or values["add_bias_linear"]),
        out_bias=bool(values["add_bias_linear"]),
        linear_bias=bool(values["add_bias_linear"]),
        norm_bias=values["normalization"] == "LayerNorm",
        learned_positions=_learned_positions(values),
        sinks=values["softmax_type"] == "learnable",
        max_seq=values["max_pos"] or values["seq_len"] or 0,
        **gqa,
        **_experts(values, layers),
        **_window(values),
    )
    return _named(shape)


@lru_cache(maxsize=256)
def _named(shape: ModelShape) -> ModelShape:
    """``shape`` under its name when it is a known model.

    What a launch line cannot say (a query-key norm over the full width, a router bias, the nominal head size of
    MLA) is taken from the known model that the shape otherwise equals.
    """
    for known in (shape, *models().values()):
        unsaid: dict[str, Any] = {"router_bias": known.router_bias}
        if "none" not in (shape.qk_norm, known.qk_norm) or known.qk_norm == "full_dim":
            unsaid["qk_norm"] = known.qk_norm
        if shape.attention == "mla":
            unsaid["head_dim"] = known.head_dim
        alike = replace(shape, **unsaid)
        name = identify(alike)
        if name is not None and known.name in (name, shape.name):
            return replace(alike, name=name)
    return shape


def _ffn(values: Mapping[str, Any]) -> int:
    """Dense MLP width; the stack's own default is 4 hidden, two thirds of it when gated."""
    if values["ffn"] is not None:
        return required(values, "ffn")
    hidden = required(values, "hidden")
    return int((4 * hidden * 2 / 3) / 64) * 64 if values["swiglu"] else 4 * hidden


def _attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """Head counts and sizes, with the ranks of multi-latent attention."""
    hidden, heads = required(values, "hidden"), required(values, "heads")
    normed = bool(values["qk_layernorm"])
    indexer = {
        name: values[key] or 0
        for name, key in (
            ("index_heads", "dsa_index_heads"),
            ("index_head_dim", "dsa_index_head_dim"),
            ("index_topk", "dsa_index_topk"),
        )
        if values["attn_variant"] == "dsa"
    }
    if not values["mla"]:
        return {
            "kv_heads": required(values, "kv_groups") if values["gqa"] else heads,
            "head_dim": values["kv_channels"] or hidden // heads,
            "qk_norm": "per_head" if normed else "none",
            **indexer,
        }
    return {
        "attention": "mla",
        "kv_heads": heads,
        "head_dim": values["kv_channels"] or values["v_head_dim"],
        "q_lora_rank": values["q_lora_rank"] or 0,
        "kv_lora_rank": values["kv_lora_rank"],
        "qk_nope_dim": values["qk_head_dim"],
        "qk_rope_dim": values["qk_pos_emb_head_dim"],
        "v_dim": values["v_head_dim"],
        "qk_norm": "lora" if normed else "none",
        **indexer,
    }


def _experts(values: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The expert part; empty for a dense model."""
    if not values["num_experts"]:
        return {}
    experts, top_k = required(values, "num_experts"), required(values, "topk")
    if top_k > experts:
        raise UserError(f"--moe-router-topk {top_k} is more than the {experts} of --num-experts; lower it")
    return {
        "experts": experts,
        "top_k": top_k,
        "moe_ffn": required(values, "moe_ffn") if values["moe_ffn"] else _ffn(values),
        "shared_ffn": values["shared_expert_size"] or 0,
        "first_dense_layers": leading_dense_layers(str(values["moe_layer_freq"]), layers),
        "expert_bias": bool(values["add_bias_linear"]),
        "router_bias": bool(values["add_bias_linear"]),
        "moe_latent": values["moe_latent"] or 0,
    }


def _learned_positions(values: Mapping[str, Any]) -> int:
    learned = values["position_embedding"] == "learned_absolute" and values["add_position_embedding"]
    return (values["max_pos"] or values["seq_len"] or 0) if learned else 0


def _window(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sliding-window attention; ``--window-attn-skip-freq 2`` gives every other layer full attention."""
    numbers = re.findall(r"-?\d+", str(values["window_size"] or ""))
    if not numbers or int(numbers[0]) <= 0:
        return {}
    every = 2 if str(values["window_skip_freq"]) == "2" else 1
    return {"sliding_window": int(numbers[0]), "sliding_every": every}


@lru_cache(maxsize=256)
def leading_dense_layers(frequency: str, layers: int) -> int:
    """How many leading layers ``--moe-layer-freq`` leaves dense: ``"[0]*3+[1]*58"`` -> 3.

    An integer N puts experts in every N-th layer from the first on.

    Raises:
        UserError: the text cannot be read, does not cover ``layers`` layers, or interleaves dense layers.
    """
    text = re.sub(r"[\s()]", "", frequency)
    if re.fullmatch(r"[1-9][0-9]{0,8}", text):
        pattern = [int(i % int(text) == 0) for i in range(layers)]
    else:
        terms = [_TERM.fullmatch(term) for term in text.split("+")]
        runs = [(term[1].split(","), int(term[2] or 1)) for term in terms if term]
        if None in terms or sum(len(bits) * times for bits, times in runs) != layers:
            raise UserError(f"--moe-layer-freq {frequency!r} does not describe {layers} layers; use [0]*3+[1]*58")
        pattern = [int(bit) for bits, times in runs for bit in bits * times]
    dense = pattern.index(1) if 1 in pattern else layers
    if 0 in pattern[dense:]:
        raise UserError(f"--moe-layer-freq {frequency!r} interleaves dense and expert layers, which is not simulated")
    return dense
