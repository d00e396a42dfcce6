"""Where arithmetic goes, by the settings: against the simulator's own counts."""

from __future__ import annotations

import pytest

from attune_lab.diagnosis.work import EXPERT_COST, expert_skew, product_share, replayed, replayed_experts, total, work
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from attune_lab.recipe.shape import shape_of
from simulator.hardware import parse_cluster
from simulator.models import flops_per_token

RECIPES = (
    "llama-3.1-405b",
    "qwen3-235b-a22b",
    "mixtral-8x22b",
    "gpt-oss-120b",
    "deepseek-v3",
    "kimi-k2",
    "glm-4.5-air",
)


def known(name: str, **edits) -> dict:
    return {**effective(load(name).recipe, parse_cluster("512xH100-SXM5-80GB")), **edits}


@pytest.mark.parametrize("name", RECIPES)
def test_the_sum_is_the_models(name):
    """Six times the multiply-adds of a token, without what experts cost beyond theirs; the oracle counts a model's
    FLOPs from its shape (routers and sliding windows, which are left out here, are within 6 %)."""
    settings = known(name)
    parts = work({**settings, "force_load_balancing": True})
    parts["experts"] /= EXPERT_COST
    shape = shape_of(load(name).recipe.with_settings({"mtp_num_layers": None}))
    assert 6 * total(parts) == pytest.approx(float(flops_per_token(shape, settings["seq_len"])), rel=0.06)


def test_replays():
    full = {"recompute_level": 3, "recompute_modules": ()}
    assert replayed(known("llama-3.1-405b", **full)) == replayed_experts(known("qwen3-235b-a22b", **full)) == 1.0
    block = {**full, "recompute_method": "block", "recompute_num_layers": 5, "stage_layers": (10,) * 8, "vpp": None}
    assert replayed(known("llama-3.1-405b", **block)) == 0.5
    assert replayed(known("llama-3.1-405b", **{**block, "vpp": 2})) == 1.0
    none = {"recompute_level": 0, "recompute_modules": ()}
    assert replayed(known("llama-3.1-405b", **none)) == 0.0
    mlp = {"recompute_level": 2, "recompute_modules": ("mlp",)}
    assert 0.7 < replayed(known("llama-3.1-405b", **mlp)) < 0.85  # of 405B's layers
    moe = {"recompute_level": 2, "recompute_modules": ("moe",)}
    assert replayed_experts(known("qwen3-235b-a22b", **moe)) == 1.0
    assert replayed({}) == 0.0


def test_skew_grows_with_the_ranks_of_learned_routing():
    assert expert_skew(known("qwen3-235b-a22b", ep=8)) == pytest.approx(1 + 3 * 0.16)
    assert expert_skew(known("qwen3-235b-a22b", ep=1)) == 1.0
    assert expert_skew(known("qwen3-235b-a22b", ep=8, force_load_balancing=True)) == 1.0
    assert expert_skew(known("llama-3.1-405b", ep=1)) == 1.0


def test_unknown_settings_say_nothing():
    assert work({}) == {}
    assert product_share({}) == 1.0
