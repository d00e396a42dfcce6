import re
from typing import get_args

import pytest

from attune_lab.gate.defects import defects
from attune_lab.recipe import Recipe
from attune_lab.recipe.registry import (
    Direction,
    Kind,
    SettingClass,
    registry,
    setting_of_flag,
    spelling_of_flag,
)

DEFECTS = {defect.id for defect in defects()}
SETTINGS = list(registry().values())


def test_it_covers_the_vocabulary():
    assert len(registry()) >= 200
    vocabulary = """tp pp vpp layers_per_vstage cp ep etp mbs gbs seq_len num_layers hidden heads kv_groups kv_channels
        ffn moe_ffn num_experts topk sequence_parallel use_distributed_optimizer overlap_grad_reduce
        overlap_param_gather
        grad_reduce_in_fp32 recompute_granularity recompute_method recompute_num_layers recompute_modules dispatcher
        flex_backend grouped_gemm moe_permute_fusion ep_overlap delay_wgrad shared_expert_overlap cuda_graph_impl
        cuda_graph_modules fp8 fp8_recipe fp8_param_gather tp_comm_overlap cross_entropy_fusion pp_layout
        first_stage_layers last_stage_layers account_embedding account_loss"""
    assert set(vocabulary.split()) <= set(registry())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_every_setting_is_well_formed(setting):
    assert setting.kind in get_args(Kind)
    assert setting.cls in get_args(SettingClass)
    assert setting.direction in get_args(Direction)
    assert setting.why
    assert setting.allowed
    assert set(re.findall(r"F\d{3}", setting.why + setting.allowed)) <= DEFECTS
    assert all(re.fullmatch(r"--[a-z0-9][a-z0-9_-]*", flag) for flag in setting.flags)
    python = {"int": int, "float": float, "bool": bool, "str": str, "enum": str, "list": tuple}[setting.kind]
    assert setting.default is None or type(setting.default) is python
    if setting.kind == "bool":
        constants = {s.constant for s in setting.spellings if s.arity == "constant"}
        assert constants, "a boolean needs a flag that sets it"
        assert (not setting.default) in constants, "the flag must be able to leave the default"
    else:
        assert not setting.spellings or setting.spellings[0].arity != "constant"
    if setting.choices:
        stated = setting.default if setting.kind == "list" else (setting.default,)
        assert set(stated or ()) - {None} <= set(setting.choices)


def test_no_flag_belongs_to_two_settings():
    flags = [flag for setting in SETTINGS for flag in setting.flags]
    assert len(flags) == len(set(flags))
    assert all(setting_of_flag(flag) is not None for flag in flags)


def test_polarity_aliases_and_deprecated_spellings():
    assert spelling_of_flag("--no-rope-fusion").constant is False
    assert setting_of_flag("--no-rope-fusion").key == "rope_fusion"
    assert setting_of_flag("--disable-bias-linear").default is True
    deepep = spelling_of_flag("--moe-enable-deepep")
    assert (deepep.constant, deepep.deprecated) == ("deepep", True)
    assert setting_of_flag("--moe-router-padding-for-fp8").key == "router_padding_quant"
    assert spelling_of_flag("--recompute-modules").arity == "words"
    assert setting_of_flag("--tensor-parallel") is None
    assert spelling_of_flag("--tensor-parallel") is None


def test_what_decides_the_objective_is_no_lever():
    for key in (
        "gbs",
        "seq_len",
        "lr",
        "num_layers",
        "capacity_factor",
        "force_load_balancing",
        "per_token_loss",
    ):
        assert not registry()[key].lever
        assert registry()[key].cls == "objective-changing"
    for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "recompute_modules", "cuda_graph_impl"):
        assert registry()[key].lever


def test_a_recipe_falls_back_to_the_stacks_default():
    recipe = Recipe("megatron-lm", {"tp": 4})
    assert recipe.get("tp") == 4
    assert recipe.get("pp") == 1
    assert recipe.get("recompute_modules") == ("core_attn",)
    with pytest.raises(KeyError):
        recipe.get("tensor")
