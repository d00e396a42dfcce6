"""The configuration check: every class of difference, known defects, and what nobody can judge."""

import pytest

from attune_lab.contracts import UserError
from attune_lab.gate import Change, judge
from attune_lab.gate.bands import FP8, NO_ALLOWANCE
from attune_lab.gate.configuration import change_between, check, rounding
from attune_lab.recipe import Recipe
from attune_lab.recipe.registry import registry
from simulator.hardware import parse_cluster

IN_FORCE = {
    "mbs": 2, "dp": 1, "recompute_granularity": "none", "num_experts": 0, "dispatcher": "alltoall", "fp8": None,
}  # fmt: skip
CLUSTER = parse_cluster("64xH200-SXM5-141GB")
SETTINGS = {
    "tp": 1, "pp": 4, "ep": 8, "etp": 1, "mbs": 1, "gbs": 256, "seq_len": 4096, "num_layers": 32, "hidden": 4096,
    "heads": 32, "gqa": True, "kv_groups": 8, "ffn": 14336, "moe_ffn": 14336, "num_experts": 8, "topk": 2,
    "swiglu": True, "untie_embeddings": True, "add_bias_linear": False, "vocab_size": 32000, "max_pos": 4096,
    "normalization": "RMSNorm", "position_embedding": "rope", "dispatcher": "alltoall", "grouped_gemm": True,
    "bf16": True, "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "lr": 1e-4, "aux_loss_coeff": 1e-2, "router_dtype": "fp32", "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
BASE = Recipe("megatron-lm", SETTINGS, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {}, {"mcore": "0.16.0", "te": "2.8"})


def outcome(edits=None, *, environment=None, approvals=(), baseline=BASE, versions=None):
    candidate = baseline.with_settings(edits or {}).with_environment(environment or {})
    result = check(baseline, candidate, cluster=CLUSTER, approvals=approvals, versions=versions)
    return judge(result.checks, []).verdict


@pytest.mark.parametrize(
    "edits",
    [
        {}, {"mbs": 2}, {"pp": 2}, {"vpp": 2}, {"cp": 2, "aux_loss_coeff": 1e-2}, {"ep": 4},
        {"overlap_param_gather": False},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"dispatcher": "flex", "flex_backend": "deepep"}, {"moe_permute_fusion": True}, {"cross_entropy_fusion": True},
        {"sequence_parallel": True}, {"pp_layout": "Et*8|t*8|t*8|t*8L"}, {"grad_reduce_in_fp32": True},
        {"log_interval": 5}, {"optimizer_cpu_offload": True},
    ],
    ids=str,
)  # fmt: skip
def test_legitimate_changes_pass(edits):
    assert outcome(edits) == "pass"


OTHER = {"int": 7, "float": 0.123, "bool": None, "str": "other", "list": ("7",), "enum": None}
FIXED = sorted(k for k, s in registry().items() if s.cls == "objective-changing" and s.direction == "fixed")


@pytest.mark.parametrize("key", FIXED)
def test_every_objective_change_is_rejected(key):
    """Whichever setting of the objective moves, alone, the verdict is a rejection (or the value is no recipe)."""
    setting, old = registry()[key], BASE.get(key)
    new = {"bool": not old, "enum": next((c for c in reversed(setting.choices) if c != old), None)}.get(
        setting.kind, OTHER[setting.kind]
    )
    if key in ("moe_layer_freq", "rampup_batch_size"):
        new = {"moe_layer_freq": "([0]*1+[1]*31)", "rampup_batch_size": ("16", "16", "1000")}[key]
    edits = {"num_layers": 28} if key == "num_layers" else {key: new}
    assert outcome(edits) == "reject"


@pytest.mark.parametrize(
    "edits",
    [
        {"force_load_balancing": True},
        {"capacity_factor": 1.0},
        {"check_nan": False},
        {"gbs": 128},
        {"grad_reduce_in_fp32": False},
    ],
    ids=str,
)
def test_shortcuts_are_rejected(edits):
    base = BASE.with_settings({"grad_reduce_in_fp32": True})
    assert outcome(edits, baseline=base) == "reject"


@pytest.mark.parametrize("shortcut", [{"force_load_balancing": True}, {"check_nan": False}, {"capacity_factor": 1.0}])
def test_what_the_baseline_has_is_not_held_against_the_candidate(shortcut):
    assert outcome({"pp": 2}, baseline=BASE.with_settings(shortcut)) == "pass"


@pytest.mark.parametrize(
    ("beside", "edits"),
    [
        ({"capacity_factor": 1.25}, {"mbs": 2}),
        ({"capacity_factor": 1.25}, {"cp": 2}),
        ({"topk_limited_devices": 2}, {"ep": 4}),
        ({"optimizer": "dist_muon"}, {"tp": 2, "sequence_parallel": True}),
        ({"dataloader_type": "cyclic"}, {"pp": 2}),  # dp doubles
        ({"reset_attention_mask": True}, {"create_attention_mask": False}),
    ],
    ids=str,
)
def test_harmless_settings_are_rejected_beside_what_ties_them_to_the_objective(beside, edits):
    released = Recipe.from_canonical({**BASE.canonical(), "versions": {"mcore": "0.19.0", "te": "2.8"}})
    assert outcome(edits, baseline=released) == "pass"
    assert outcome(edits, baseline=released.with_settings(beside)) == "reject"


@pytest.mark.parametrize(
    "layout",
    ["Et*8|t*8|t*8|t*7L", "Et*8|t*8|t*8|t*9L", "Et*8|t*8|t*8|t*8mL", "Et*8|t*8|t*8|t*8|t*8L"],
)
def test_a_layout_string_that_trains_other_layers_is_rejected(layout):
    assert outcome({"pp_layout": layout}) == "reject"


def test_padding_that_follows_tp_is_named_and_allowed_for():
    odd = BASE.with_settings({"vocab_size": 50257})
    released = Recipe.from_canonical({**odd.canonical(), "versions": {"mcore": "0.19.0", "te": "2.8"}})
    result = check(released, released.with_settings({"tp": 8, "sequence_parallel": True}), cluster=CLUSTER)
    assert judge(result.checks, []).verdict == "pass"
    assert any("from 50304 to 51200 rows" in c.reason for c in result.checks)
    assert result.allowance.step_1 == pytest.approx(1.63e-3, rel=0.01)  # ln(51200 / 50304) / ln(50304)
    assert outcome({"make_vocab_size_divisible_by": 1024}, baseline=released) == "reject"


def test_fp8_needs_approval_and_one_word_covers_its_settings():
    fp8 = {"fp8": "e4m3", "fp8_recipe": "blockwise"}
    assert outcome(fp8) == "reject"
    assert outcome(fp8, approvals=("fp8",)) == "pass"
    candidate = BASE.with_settings(fp8)
    assert check(BASE, candidate, cluster=CLUSTER, approvals=("fp8",)).change is Change.LOW_PRECISION


@pytest.mark.parametrize("wider", ["fp8_param_gather", "fp8_dot_product_attention", "fp8_multi_head_attention"])
def test_an_approval_of_fp8_gemms_is_not_one_of_fp8_weights_or_attention(wider):
    edits = {"fp8": "e4m3", "fp8_recipe": "blockwise", wider: True}
    assert outcome(edits, approvals=("fp8",)) == "reject"
    assert outcome(edits, approvals=("fp8", wider)) == "pass"


def test_an_approved_parameter_of_the_space_covers_the_settings_it_writes():
    edits = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    assert outcome(edits) == "reject"
    assert outcome(edits, approvals=("moments",)) == "pass"


@pytest.mark.parametrize(
    "edits", [{"fp8_amax_history_len": 16}, {"fp8_margin": 1}, {"router_padding_quant": True}], ids=str
)
def test_an_approval_of_fp8_covers_how_gemms_are_quantised(edits):
    base = BASE.with_settings({"fp8": "e4m3", "fp8_recipe": "delayed"})
    assert outcome(edits, baseline=base) == "reject"
    assert outcome(edits, baseline=base, approvals=("fp8",)) == "pass"


def test_a_forbidden_setting_is_named_as_such():
    found = check(BASE, BASE.with_settings({"force_load_balancing": True}), cluster=CLUSTER).checks
    assert any("no training run may use" in c.reason for c in found)


def test_an_approval_may_name_the_group_and_must_name_something():
    fp8 = {"fp8": "e4m3", "fp8_recipe": "blockwise"}
    assert outcome(fp8, approvals=("precision.fp8",)) == "pass"
    with pytest.raises(UserError, match="fp8"):
        outcome(fp8, approvals=("fp_8",))


@pytest.mark.parametrize(
    ("edits", "name"),
    [
        ({"gbs": 128}, "global_batch"), ({"gbs": 128}, "tokens_per_step"), ({"seq_len": 2048}, "tokens_per_step"),
        ({"gbs": 128}, "lr_horizon"), ({"train_iters": 50}, "lr_horizon"), ({"lr_warmup_iters": 5}, "lr_warmup"),
        ({"pp_layout": "Et*8|t*8|t*8|t*7L"}, "layers"), ({"pp_layout": "Et*8|t*8|t*8|t*7L"}, "parameters"),
        ({"pp_layout": "Et*8|t*8|t*8|t*8mL"}, "mtp_layers"), ({"pp_layout": "Et*8|t*8|t*8|t*8mL"}, "parameters"),
        ({"freeze_all_layers": True}, "parameters"), ({"num_experts": 16}, "parameters"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_step_trains_is_derived_and_compared(edits, name):
    base = BASE.with_settings({"train_iters": 100, "lr_warmup_iters": 10})
    found = {c.name: c for c in check(base, base.with_settings(edits), cluster=CLUSTER).checks}
    assert found[f"configuration.{name}"].outcome == "reject"


def test_the_parameters_trained_are_counted_without_padding():
    found = check(BASE, BASE.with_settings({"pp_layout": "Et*8|t*8|t*8|t*7L"}), cluster=CLUSTER).checks
    reason = next(c.reason for c in found if c.name == "configuration.parameters")
    # Mixtral 8x7B, arXiv 2401.04088: 46.7 B parameters of 32 layers, of which 0.26 B are the two vocabulary matrices.
    assert "instead of 46,702,792,704" in reason
    old, new = 46_702_792_704, int(reason.split()[3].replace(",", ""))
    assert (old - new) * 32 == pytest.approx(old - 2 * 32000 * 4096, rel=1e-6)


@pytest.mark.parametrize("key", ["lr", "aux_loss_coeff", "seed", "clip_grad", "train_iters"])
def test_no_approval_opens_the_objective(key):
    assert outcome({key: 7}, approvals=(key,)) == "reject"


@pytest.mark.parametrize(
    ("edits", "change"),
    [
        ({"overlap_param_gather": False}, Change.SAME_KERNELS),
        ({"mbs": 2}, Change.REORDERED),
        ({"moe_permute_fusion": True}, Change.REORDERED),
        ({"attention_softmax_fp32": True}, Change.REORDERED),
        ({"mbs": 2, "dispatcher": "flex", "flex_backend": "deepep"}, Change.DISPATCHER),
    ],
    ids=str,
)
def test_the_most_invasive_change_is_named(edits, change):
    assert check(BASE, BASE.with_settings(edits), cluster=CLUSTER).change is change


def test_environment_is_known_or_a_question():
    assert outcome(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}) == "pass"
    assert outcome(environment={"MY_MODEL_TRICK": "1"}) == "inconclusive"


def test_unknown_flags_and_versions_are_a_question():
    for field in ("carried", "versions"):
        other = Recipe.from_canonical({**BASE.canonical(), field: {**getattr(BASE, field), "--mystery": "1"}})
        assert judge(check(BASE, other, cluster=CLUSTER).checks, []).verdict == "inconclusive"


def test_a_defect_counts_when_the_candidate_brings_it_in():
    clipped = {"tp": 2, "sequence_parallel": True}
    assert outcome(clipped) == "reject"  # F062: experts missing from the gradient norm before 0.19
    fixed = Recipe.from_canonical({**BASE.canonical(), "versions": {"mcore": "0.19.0", "te": "2.8"}})
    assert outcome(clipped, baseline=fixed) == "pass"
    assert outcome({"mbs": 2}, baseline=BASE.with_settings(clipped)) == "pass"


def test_an_unknown_version_is_a_question_only_where_it_matters():
    nameless = Recipe.from_canonical({**BASE.canonical(), "versions": {}})
    assert outcome({"overlap_param_gather": False}, baseline=nameless) == "pass"
    assert outcome({"tp": 2, "sequence_parallel": True}, baseline=nameless) == "inconclusive"
    assert outcome({"tp": 2, "sequence_parallel": True}, baseline=nameless, versions={"mcore": "0.19.1"}) == "pass"
    candidate = nameless.with_settings({"tp": 2, "sequence_parallel": True})
    assert judge(check(nameless, candidate, cluster=CLUSTER, versions_follow=True).checks, []).verdict == "pass"


@pytest.mark.parametrize(
    ("moved", "kind"),
    [
        ({}, Change.SAME_KERNELS),
        ({"recompute_granularity": "full"}, Change.SAME_KERNELS),
        ({"mbs": 4}, Change.REORDERED),
        ({"dp": 2}, Change.REORDERED),
        ({"num_experts": 4, "dispatcher": "allgather"}, Change.DISPATCHER),
        ({"fp8": True, "mbs": 4}, Change.LOW_PRECISION),
    ],
)
def test_the_most_invasive_change_counts(moved, kind):
    assert change_between(IN_FORCE, IN_FORCE | moved) is kind


@pytest.mark.parametrize(("before", "after", "added"), [("e4m3", "e4m3", FP8), (None, "e4m3", NO_ALLOWANCE)])
def test_two_runs_in_fp8_round_their_tensors_by_parts(before, after, added):
    assert rounding({"fp8": before}, {"fp8": after}) is added
