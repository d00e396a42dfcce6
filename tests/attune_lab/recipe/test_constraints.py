"""Every rule fires on its own example and on nothing sound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.recipe.constraints import Constraint, can_start, check, constraints, errors, violations
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import compile_expression
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe


@pytest.mark.parametrize("recipe", [moe(), dense()], ids=["moe", "dense"])
def test_sound_recipes_break_nothing(recipe):
    assert check(recipe, cluster()) == []


@pytest.mark.parametrize("rule", constraints(), ids=lambda rule: rule.id)
def test_example_breaks_its_rule(rule: Constraint) -> None:
    values = effective(moe(), cluster()) | rule.example
    found = {finding.id: finding for finding in violations(values)}
    assert rule.id in found
    assert can_start(values) == all(finding.severity != "error" for finding in found.values())


def test_message_names_flags_values_and_cluster() -> None:
    first = errors(moe(tp=3), cluster())[0]
    assert first.id == "L01"
    assert first.message.startswith(
        "64 GPUs, --tensor-model-parallel-size 3, --pipeline-model-parallel-size 4, --context-parallel-size 1: "
    )
    assert first.message.endswith("choose TP, PP, CP whose product divides the GPU count.")


def test_conditions_read_only_effective_settings() -> None:
    known = set(effective(moe(), cluster()))
    assert {name for rule in constraints() for name in rule.violated.names} <= known


def test_rules_need_no_python() -> None:
    assert all(compile_expression(rule.violated.text) is rule.violated for rule in constraints())


@pytest.mark.parametrize(
    ("edits", "ids"),
    [
        ({"tp": 1}, ["S01"]),
        ({"etp": None, "ep": 4}, ["L03"]),
        ({"num_layers": 61, "vpp": None}, ["P01"]),
        ({"num_layers": 61, "vpp": None, "first_stage_layers": 16, "last_stage_layers": 15}, []),
        ({"num_layers": 61, "vpp": None, "first_stage_layers": 14, "last_stage_layers": 16}, ["P12"]),
        ({"num_layers": 62, "first_stage_layers": 16, "last_stage_layers": 16}, ["P13"]),
        ({"num_layers": 62, "vpp": None, "account_embedding": True, "account_loss": True}, []),
        ({"num_layers": 30, "vpp": None, "pp_layout": "Et*7|t*8|t*8|t*7L"}, []),
        ({"num_layers": 30, "vpp": None, "pp_layout": "E(t*4|)*7t*2L"}, []),
        ({"num_layers": 30, "vpp": None, "pp_layout": "E(t*4|)*7t*3L"}, ["P08"]),
        ({"mtp_num_layers": 1, "vpp": None, "pp_layout": "Et*8|t*8|t*8|t*8mL"}, []),
        ({"mtp_num_layers": 1, "vpp": None, "pp_layout": "Et*8|t*4|t*4|t*4|m|t*4|t*4|t*4L"}, ["P10"]),
        ({"vpp": 3}, ["P02"]),
        ({"dispatcher": "flex", "flex_backend": "deepep"}, []),
        ({"dispatcher": "flex", "shared_expert_size": 2048, "shared_expert_overlap": True}, ["M11"]),
        ({"dispatcher": "alltoall", "shared_expert_size": 2048, "shared_expert_overlap": True}, []),
        ({"cuda_graph_impl": "full_iteration", "check_nan": False}, ["G11"]),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("full_iteration",), "check_nan": False}, []),
        ({"ep_overlap": True, "mtp_num_layers": 1, "tp": 1, "sequence_parallel": None}, []),
        ({"ep_overlap": True, "mtp_num_layers": 1, "pp": 1, "vpp": None, "tp": 1, "sequence_parallel": None}, ["M23"]),
        ({"fp8": "hybrid"}, []),
        ({"recompute_granularity": "full"}, ["R01"]),
        ({"cp": 3}, ["L01", "L12", "L13"]),
    ],
)
def test_recipes_that_break_rules(edits, ids) -> None:
    assert [finding.id for finding in check(moe(**edits), cluster())] == ids


@pytest.mark.parametrize(("release", "ids"), [("0.16.1", ["M11"]), ("0.17.0", []), ("nightly", ["M11"])])
def test_rules_are_those_of_the_release_a_recipe_names(release, ids) -> None:
    overlapped = moe(dispatcher="flex", shared_expert_size=2048, shared_expert_overlap=True)
    found = check(replace(overlapped, versions={"mcore": release}), cluster())
    assert [finding.id for finding in found] == ids
    assert all("mcore 0.16" in finding.message for finding in found)


SIZES = ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs", "layers_per_vstage", "first_stage_layers", "kv_groups",
         "num_distopt_instances", "log_memory_interval", "num_experts", "moe_ffn", "mb_group_per_vp")  # fmt: skip


@given(st.dictionaries(st.sampled_from(SIZES), st.integers(-2, 70), max_size=4))
def test_any_sizes_are_judged_or_refused_in_one_sentence(edits) -> None:
    try:
        sentences = [finding.message for finding in check(moe(**edits), cluster())]
    except UserError as error:
        sentences = [str(error)]
    assert all("\n" not in sentence and len(sentence) < 600 for sentence in sentences)
