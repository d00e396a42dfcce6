"""The stack's own configuration class takes what the rules let through, and refuses what they refuse for its sake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from attune_lab.cost_model import SimulatedCostModel
from attune_lab.recipe.carry import carry_over
from attune_lab.recipe.constraints import constraints, errors
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load, shipped
from attune_lab.recipe.registry import registry
from attune_lab.recipe.shape import leading_dense_layers
from attune_lab.space import SearchSpace
from simulator.hardware import parse_cluster
from tests.attune_lab.recipe.recipes_for_tests import cluster, moe

torch = pytest.importorskip("torch")
core = pytest.importorskip("megatron.core.transformer.transformer_config")

FIELDS = {field.name for field in fields(core.MLATransformerConfig)}
OTHERWISE_NAMED = {
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage",
    "num_experts": "num_moe_experts",
    "fp8": "fp8",
    "fp4": "fp4",
    "fp8_param_gather": "fp8_param",
    "gradient_accumulation_fusion": "gradient_accumulation_fusion",
}
# Text the launcher parses first, and fusions that ask for an installed Transformer Engine.
LEFT_OUT = {
    "attention_backend", "cp_comm_type", "moe_layer_freq", "moe_permute_fusion", "rope_fusion", "window_size",
    "window_skip_freq",
}  # fmt: skip
CLUSTERS = {"H100": "H100-SXM5-80GB", "B200": "B200-SXM-180GB", "GB200": "GB200-NVL72", "MI355X": "MI355X"}
RULES = {rule.id: rule for rule in constraints()}
OF_RELEASE_0_16 = ("M05", "M11", "M23", "R14", "G10", "G11", "Q09", "A05")


def field_of(key: str) -> str | None:
    """The field a setting ends up in: named like its flag, with few exceptions; None outside the class."""
    names = (OTHERWISE_NAMED.get(key), *(flag[2:].replace("-", "_") for flag in registry()[key].flags))
    return next((name for name in names if name in FIELDS and key not in LEFT_OUT), None)


def build(values: Mapping[str, Any]) -> Any:
    """The configuration object for effective settings; raises whatever the stack raises."""
    arguments = {
        name: list(values[key]) if isinstance(values[key], tuple | list) else values[key]
        for key in registry()
        if (name := field_of(key)) and values[key] is not None
    }
    dense = leading_dense_layers(str(values["moe_layer_freq"]), values["num_layers"]) if values["num_experts"] else 0
    arguments |= {
        "pipeline_dtype": torch.bfloat16,
        "num_query_groups": values["kv_groups"],
        "virtual_pipeline_model_parallel_size": values["vpp"],
        "moe_ffn_hidden_size": values["moe_ffn"] if values["num_experts"] else None,
        "moe_layer_freq": [0] * dense + [1] * (values["num_layers"] - dense),
    }
    kind = core.MLATransformerConfig if values["mla"] else core.TransformerConfig
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in arguments.items() if name in known})


@pytest.fixture(autouse=True)
def _transformer_engine(monkeypatch):
    """Versions of Transformer Engine are rules of their own; here it is as new as the recipes say."""
    monkeypatch.setattr(core, "is_te_min_version", lambda *_, **__: True)


def test_settings_reach_the_configuration() -> None:
    reached = {field_of(key) for key in registry()} - {None}
    assert len(reached) > 100
    assert build(effective(moe(), cluster())).virtual_pipeline_model_parallel_size == 2


@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: entry.name)
def test_shipped_recipes_are_taken_as_published(entry) -> None:
    here = parse_cluster(f"{entry.gpus}x{CLUSTERS[entry.accelerator]}")
    build(effective(load(entry.name).recipe, here))


@pytest.mark.parametrize("name", ["glm-4.5", "deepseek-v3", "qwen3-235b-a22b", "mixtral-8x22b", "llama-3.1-405b"])
def test_what_the_search_space_offers_is_taken(name) -> None:
    here = parse_cluster("64xH200-SXM5-141GB")
    baseline = carry_over(load(name).recipe, here, SimulatedCostModel(here)).recipe
    build(effective(baseline, here))
    space, rng = SearchSpace(baseline, here), np.random.default_rng(16)
    for _ in range(25):
        build(effective(space.sample(rng), here))


@pytest.mark.parametrize("rule_id", OF_RELEASE_0_16)
def test_rules_made_for_this_release_are_its_own(rule_id) -> None:
    base, rule = effective(moe(), cluster()), RULES[rule_id]
    build(base)
    with pytest.raises((ValueError, AssertionError)):
        build(base | rule.example)


def test_settings_called_newer_are_unknown_to_this_release() -> None:
    newer = RULES["M25"].violated.names - {"mcore"}
    assert [key for key in newer if field_of(key)] == []


def test_the_published_overlap_of_glm_is_dropped_with_a_flex_dispatcher() -> None:
    here, recipe = parse_cluster("64xH200-SXM5-141GB"), load("glm-4.5").recipe
    space = SearchSpace(carry_over(recipe, here, SimulatedCostModel(here)).recipe, here)
    edited = space.apply(space.baseline, {"dispatcher": "flex:deepep"})
    assert space.changed(space.baseline, edited)["shared_expert_overlap"] == (True, False)
    build(effective(edited, here))
    both = space.apply(space.baseline, {"dispatcher": "flex:deepep", "shared_expert_overlap": True})
    assert [finding.id for finding in errors(both, here)] == ["M11"]
    with pytest.raises(ValueError, match="only works with alltoall"):
        build(effective(both, here))
