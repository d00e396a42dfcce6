"""Effective settings: the stack's defaults, inheritance and repairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.recipe import Recipe
from attune_lab.recipe.effective import effective, stage_layers
from attune_lab.recipe.shape import filled, leading_dense_layers, shape_of
from simulator.models import models
from tests.attune_lab.recipe.recipes_for_tests import MOE, cluster, dense, moe


def test_inheritance_and_repairs() -> None:
    values = effective(moe(etp=None, tp=4), cluster())
    assert (values["etp"], values["etp_stated"]) == (4, False)
    assert effective(dense(tp=4), cluster())["etp"] == 1
    values = effective(moe(tp=1), cluster())
    assert (values["sequence_parallel"], values["sequence_parallel_stated"]) == (False, True)


def test_batch_arithmetic() -> None:
    values = effective(moe(cp=2, mbs=2), cluster())
    assert (values["dp"], values["num_microbatches"]) == (4, 32)
    assert effective(moe(tp=8, pp=16, vpp=None), cluster())["dp"] == 0


@pytest.mark.parametrize(
    ("edits", "vpp", "split"),
    [
        ({"vpp": 2}, 2, (8, 8, 8, 8)),
        ({"vpp": None}, None, (8, 8, 8, 8)),
        ({"vpp": None, "layers_per_vstage": 2}, 4, (8, 8, 8, 8)),
        ({"vpp": None, "pp_layout": "Et*3|(t*4|)*6t*5L"}, 2, (7, 8, 8, 9)),
        ({"vpp": None, "first_stage_layers": 6, "last_stage_layers": 6}, None, (6, 10, 10, 6)),
        ({"vpp": None, "last_stage_layers": 5}, None, (9, 9, 9, 5)),
        ({"vpp": None, "num_layers": 30, "account_embedding": True, "account_loss": True}, None, (7, 8, 8, 7)),
        ({"vpp": None, "num_layers": 31}, None, ()),
    ],
)
def test_stage_split(edits, vpp, split) -> None:
    values = effective(moe(**edits), cluster())
    assert (values["vpp"], values["stage_layers"]) == (vpp, split)


@given(
    layers=st.integers(1, 130),
    pp=st.integers(1, 16),
    first=st.none() | st.integers(1, 12),
    last=st.none() | st.integers(1, 12),
)
def test_a_legal_split_holds_every_layer(layers, pp, first, last) -> None:
    values = filled(moe(num_layers=layers, pp=pp, first_stage_layers=first, last_stage_layers=last, vpp=None))
    split = stage_layers(values)
    assert split == () or (len(split) == pp and sum(split) == layers)
    if split and first is not None:
        assert split[0] == first


def test_environment_and_versions() -> None:
    recipe = Recipe(
        "megatron-lm",
        MOE,
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512, expandable_segments:True", "NCCL_NVLS_ENABLE": "0"},
        versions={"mcore": "0.16.1", "te": "2.5.0", "container": "nemo-26.04"},
    )
    values = effective(recipe, cluster())
    assert values["expandable_segments"] is True
    assert (values["nccl_nvls"], values["cdmc"]) == ("0", None)
    assert values["mcore"] == (0, 16, 1)
    assert values["te_version"] == (2, 5, 0)
    assert values["torch_version"] == (2, 9)
    assert values["gpu_arch_major"] == 9


@pytest.mark.parametrize(
    ("edits", "level", "modules"),
    [
        ({}, 0, ()),
        ({"recompute_modules": ("moe",)}, 0, ()),
        ({"recompute_granularity": "selective"}, 1, ("core_attn",)),
        ({"recompute_granularity": "selective", "recompute_modules": ("moe_act", "mlp")}, 2, ("moe_act", "mlp")),
        ({"recompute_granularity": "full"}, 3, ()),
        ({"moe_layer_recompute": True}, 2, ("moe",)),
    ],
)
def test_recompute_level(edits, level, modules) -> None:
    values = effective(moe(**edits), cluster())
    assert (values["recompute_level"], values["recompute_modules"]) == (level, modules)


@pytest.mark.parametrize(
    ("edits", "flag"),
    [
        ({"num_layers": None}, "--num-layers"),
        ({"gbs": None}, "--global-batch-size"),
        ({"tp": 0}, "--tensor-model-parallel-size"),
        ({"pp_layout": "Exyz"}, "--pipeline-model-parallel-layout"),
    ],
)
def test_missing_or_bad_flags_are_named(edits, flag) -> None:
    with pytest.raises(UserError, match=flag):
        effective(moe(**edits), cluster())


def test_shape_of_the_moe_recipe() -> None:
    shape = shape_of(moe(moe_layer_freq="[0]*3+[1]*29", shared_expert_size=2048, qk_layernorm=True))
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.head_dim) == (32, 4096, 8, 128)
    assert (shape.experts, shape.top_k, shape.first_dense_layers, shape.shared_ffn) == (64, 2, 3, 2048)
    assert shape.qk_norm == "per_head"
    assert not shape.norm_bias
    assert shape.gated_mlp
    assert not shape.tied_embeddings


def test_shape_needs_a_vocabulary() -> None:
    with pytest.raises(UserError, match="--vocab-size"):
        shape_of(moe(vocab_size=None))


@pytest.mark.parametrize(
    ("text", "layers", "dense_layers"),
    [("1", 8, 0), ("([0]*3+[1]*58)", 61, 3), ("[0]+[1]*46", 47, 1), ("[0,0,1,1]", 4, 2), ("[1]*5", 5, 0)],
)
def test_moe_layer_frequency(text, layers, dense_layers) -> None:
    assert leading_dense_layers(text, layers) == dense_layers


@pytest.mark.parametrize("text", ["2", "[0]*3+[1]*2+[0]", "[1]*5", "import os", "[0]*3+", "-1"])
def test_moe_layer_frequency_refusals(text) -> None:
    with pytest.raises(UserError, match="--moe-layer-freq"):
        leading_dense_layers(text, 6)


def test_what_a_launch_line_cannot_say_comes_from_the_known_model() -> None:
    known = models()["minimax-m2"]
    recipe = moe(
        num_layers=known.layers, hidden=known.hidden, ffn=known.ffn, moe_ffn=known.moe_ffn, heads=known.heads,
        kv_groups=known.kv_heads, num_experts=known.experts, topk=known.top_k, vocab_size=known.vocab, pp=2,
        qk_layernorm=True,
    )  # fmt: skip
    assert known.qk_norm == "full_dim"
    assert shape_of(recipe) == replace(known, max_seq=4096)
    assert shape_of(moe()).name == "custom"
