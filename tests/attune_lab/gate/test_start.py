"""Which changes redraw the initial weights or the dropout masks, and what settles the question."""

import pytest

from attune_lab.gate.start import INITIAL_WEIGHTS, dropout_masks_may_differ, settings_of, start_may_differ
from attune_lab.recipe.registry import registry
from attune_lab.signals.schema import PLACED_MASKS

REDRAWING = (
    "tp", "pp", "vpp", "layers_per_vstage", "pp_layout", "first_stage_layers", "last_stage_layers",
    "account_embedding", "account_loss", "ep", "etp", "megatron_fsdp", "torch_fsdp2",
    "data_parallel_sharding_strategy", "transformer_impl", "use_mcore_models", "grouped_gemm",
    "legacy_grouped_gemm", "te_rng_tracker", "make_vocab_size_divisible_by", "padded_vocab_size",
)  # fmt: skip
MASKING = (
    "cp", "cp_comm_type", "hierarchical_cp", "sequence_parallel", "mbs", "dp", "mb_group_per_vp",
    "overlap_p2p_comm_warmup_flush", "ep_overlap", "attention_backend", "masked_softmax_fusion",
    "bias_dropout_fusion", "deterministic_mode", "cuda_graph_impl", "env_NVTE_FLASH_ATTN",
)  # fmt: skip
MOE = {"tp": 2, "num_experts": 8, "hidden_dropout": 0.0, "attention_dropout": 0.0}


def other(key):
    """A value that is not the default."""
    setting = registry().get(key)
    return not setting.default if setting and setting.kind == "bool" else "another"


@pytest.mark.parametrize("key", REDRAWING)
def test_each_setting_that_redraws_the_weights_is_named(key):
    assert key in (start_may_differ(MOE, {**MOE, key: other(key)}) or "")


@pytest.mark.parametrize(
    "key",
    ["mbs", "cp", "sequence_parallel", "dp", "overlap_grad_reduce", "use_distributed_optimizer", "attention_backend",
     "recompute_granularity", "dispatcher", "cross_entropy_fusion", "use_tp_pp_dp_mapping"],
)  # fmt: skip
def test_other_performance_settings_keep_the_start(key):
    assert start_may_differ(MOE, {**MOE, key: other(key)}) is None


def test_a_missing_setting_has_its_default():
    assert start_may_differ({"pp": 1}, {}) is None
    assert start_may_differ({"pp": 2}, {})


def test_etp_is_inherited_and_means_nothing_without_experts():
    assert start_may_differ(MOE, {**MOE, "etp": 2}) is None
    assert start_may_differ({"tp": 2}, {"tp": 2, "etp": 1}) is None


@pytest.mark.parametrize("key", ["load", "pretrained_checkpoint"])
def test_a_common_checkpoint_settles_the_start(key):
    assert start_may_differ({key: "/seed"}, {"tp": 2, key: "/seed"}) is None
    assert start_may_differ({key: "/seed"}, {"tp": 2, key: "/other"})
    assert start_may_differ({key: "/seed"}, {"tp": 2})


@pytest.mark.parametrize("load", [{"load": "/run", "save": "/run"}, {"load": "${LOAD}"}], ids=str)
def test_a_path_that_may_be_empty_settles_nothing(load):
    assert start_may_differ(load, {**load, "tp": 2})


def test_recorded_weights_count_before_settings():
    assert start_may_differ({INITIAL_WEIGHTS: "a"}, {INITIAL_WEIGHTS: "a", "tp": 2}) is None
    assert start_may_differ({INITIAL_WEIGHTS: "a"}, {INITIAL_WEIGHTS: "b"})
    assert start_may_differ({}, {INITIAL_WEIGHTS: "b", "tp": 2})


@pytest.mark.parametrize("key", [*REDRAWING, *MASKING])
def test_each_setting_that_redraws_masks_is_named_where_dropout_is_active(key):
    active = {**MOE, "hidden_dropout": 0.1}
    assert key in (dropout_masks_may_differ(active, {**active, key: other(key)}) or "")
    assert dropout_masks_may_differ(MOE, {**MOE, key: other(key)}) is None


def test_masks_stay_under_settings_that_only_time_differently():
    assert dropout_masks_may_differ({}, {"overlap_grad_reduce": True, "recompute_granularity": "full"}) is None


def test_masks_drawn_by_place_are_the_same_in_every_layout():
    placed = {**MOE, "hidden_dropout": 0.1, PLACED_MASKS: True}
    assert dropout_masks_may_differ(placed, {**placed, "tp": 2}) is None
    assert dropout_masks_may_differ(placed, {**MOE, "hidden_dropout": 0.1, "tp": 4})


def test_arguments_of_megatron_become_settings():
    arguments = {
        "--tensor-model-parallel-size": 4, "--disable-bias-linear": True, "--no-rope-fusion": None,
        "--sequence-parallel": False, "--not-a-flag": 3,
    }  # fmt: skip
    assert settings_of(arguments) == {"tp": 4, "add_bias_linear": False, "rope_fusion": False}
