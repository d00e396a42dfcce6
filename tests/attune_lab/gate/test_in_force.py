"""Settings in force of two runs: every setting of the trainer by its class, what only one run tells, what follows."""

import pytest

from attune_lab.contracts import UserError
from attune_lab.gate.in_force import effective_differences, known_defects
from attune_lab.gate.rules import FIXED_OUTSIDE, FREE_OUTSIDE, show
from attune_lab.gate.start import INITIAL_WEIGHTS
from attune_lab.signals.schema import PLACED_MASKS, Signals
from attune_lab.trainer.config import TrainerConfig

RUN = TrainerConfig().model_dump()
FREE = {
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "sequence_parallel", "schedule", "cp_comm_type", "dispatcher",
    "grouped_gemm", "mbs", "attention_backend", "cross_entropy_fusion", "recompute_granularity",
    "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "num_buckets",
}  # fmt: skip
"""What a tuner may move in the trainer without asking."""
NUMERICS = {"bf16", "fp8", "grad_reduce_in_fp32", "main_params_dtype", "exp_avg_dtype", "router_dtype"}


def outcomes(before, after, approvals=()):
    return {c.name.removeprefix("configuration."): c.outcome for c in effective_differences(before, after, approvals)}


def moved(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 2 * value + 1
    return 0.5 if value is None else "another"


@pytest.mark.parametrize("key", RUN)
def test_every_setting_of_the_trainer_is_judged(key):
    found = outcomes(RUN, {**RUN, key: moved(RUN[key])})
    assert found[key] == ("pass" if key in FREE else "reject")
    assert "inconclusive" not in found.values()


@pytest.mark.parametrize("key", sorted(NUMERICS))
def test_numerics_wait_for_approval(key):
    assert outcomes(RUN, {**RUN, key: moved(RUN[key])}, [key])[key] == "pass"


@pytest.mark.parametrize(("key", "higher"), [("grad_reduce_in_fp32", True), ("exp_avg_dtype", "fp32")])
def test_more_precision_needs_no_approval(key, higher):
    lower = {"grad_reduce_in_fp32": False, "exp_avg_dtype": "bf16"}[key]
    assert outcomes({**RUN, key: lower}, {**RUN, key: higher}) == {key: "pass"}


def test_equal_dumps_say_nothing_and_json_has_lists():
    assert effective_differences(RUN, RUN) == []
    assert effective_differences({"recompute_modules": ["moe"]}, {"recompute_modules": ("moe",)}) == []
    assert effective_differences({INITIAL_WEIGHTS: "a"}, {INITIAL_WEIGHTS: "b", PLACED_MASKS: True}) == []


@pytest.mark.parametrize("name", sorted(FIXED_OUTSIDE))
def test_entries_outside_the_registry_that_may_not_move(name):
    assert outcomes({name: 1}, {name: 2}) == {name: "reject"}


@pytest.mark.parametrize("name", sorted(FREE_OUTSIDE))
def test_entries_outside_the_registry_that_may(name):
    assert outcomes({name: 1}, {name: 2}) == {name: "pass"}


def test_what_nobody_knows_is_a_question_when_it_moves():
    assert outcomes({"optimizer.mystery": 1}, {"optimizer.mystery": 2}) == {"optimizer.mystery": "inconclusive"}
    assert outcomes({"optimizer.mystery": 1}, {"optimizer.mystery": 1}) == {}


def test_what_one_run_alone_tells_is_a_question_unless_it_is_the_default():
    assert outcomes({}, {"tp": 2}) == {"tp": "inconclusive"}
    assert outcomes({"clip_grad": 1.0}, {}) == {}
    assert outcomes({}, {"optimizer.mystery": None}) == {"optimizer.mystery": "inconclusive"}


def test_true_is_not_one():
    assert outcomes({"overlap_grad_reduce": True}, {"overlap_grad_reduce": 1}) == {"overlap_grad_reduce": "pass"}


@pytest.mark.parametrize(
    "shortcut", [{"force_load_balancing": True}, {"check_nan": False}, {"mock_data": True}], ids=str
)
def test_shortcuts_of_benchmarks_are_rejected_unless_the_baseline_takes_them(shortcut):
    key = next(iter(shortcut))
    sound = {key: not shortcut[key]}
    assert outcomes(sound, shortcut)[key] == "reject"
    assert outcomes(shortcut, shortcut) == {}


def test_a_capacity_ties_the_micro_batch_to_the_objective():
    dropping = {**RUN, "num_experts": 8, "capacity_factor": 1.0}
    assert outcomes(dropping, {**dropping, "mbs": 4})["mbs"] == "reject"
    assert "reject" not in outcomes(RUN, {**RUN, "mbs": 4}).values()


def test_the_batch_of_a_step_is_what_its_parts_make_it():
    parts = {"mbs": 2, "dp": 4, "num_microbatches": 8, "gbs": 64, "seq_len": 128}
    same = {**parts, "dp": 8, "num_microbatches": 4}
    assert "reject" not in outcomes(parts, same).values()
    found = outcomes(parts, {**parts, "dp": 8})
    assert (found["global_batch"], found["tokens_per_step"]) == ("reject", "reject")


@pytest.mark.parametrize(
    ("edits", "quantity"),
    [
        ({"gbs": 32}, "lr_horizon"), ({"gbs": 32}, "lr_warmup"), ({"seq_len": 128}, "lr_horizon"),
        ({"lr_decay_iters": 50}, "lr_horizon"), ({"lr_warmup_iters": 9}, "lr_warmup"),
        ({"lr_decay_samples": 100}, "lr_horizon"), ({"lr_warmup_fraction": 0.5}, "lr_warmup"),
        ({"lr_decay_iters": None}, "lr_horizon"),
    ],
    ids=str,
)  # fmt: skip
def test_the_schedule_is_compared_in_tokens(edits, quantity):
    run = {**RUN, "lr_decay_samples": None, "lr_warmup_fraction": None, "lr_warmup_samples": None}
    assert outcomes(run, {**run, **edits})[quantity] == "reject"


def test_a_schedule_in_samples_is_that_in_iterations_of_the_batch():
    run = {"gbs": 16, "seq_len": 64, "lr_decay_iters": 100, "lr_decay_samples": None}
    assert "lr_horizon" not in outcomes(run, {**run, "lr_decay_iters": None, "lr_decay_samples": 1600})
    samples = {"gbs": 16, "seq_len": 64, "lr_decay_samples": 1600}
    assert outcomes(samples, {**samples, "lr_decay_samples": 3200})["lr_horizon"] == "reject"
    assert "lr_horizon" not in outcomes({"lr_decay_samples": 1600}, {"lr_decay_samples": 3200})  # of unknown length


def test_long_values_are_cut_in_the_sentence():
    checks = effective_differences({"optimizer.schedule": [0.1] * 20}, {"optimizer.schedule": [0.2] * 20})
    assert "(20 values)" in checks[0].reason
    assert len(checks[0].reason) < 250


def test_approvals_are_checked():
    with pytest.raises(UserError, match="fp8"):
        effective_differences(RUN, RUN, ["fp88"])


MEGATRON = {"tp": 1, "ep": 2, "num_experts": 8, "grouped_gemm": True, "dp": 4, "world_size": 4, "etp": 1}


def recorded(edits=None, **stack):
    return Signals(producer="hooks", world_size=4, stack=stack, effective={**MEGATRON, **(edits or {})})


def test_known_defects_are_told_from_what_a_run_recorded():
    risky = {"tp": 2, "sequence_parallel": True}
    for release, expected in (("0.18.0", ["reject"]), ("0.19.0", [])):
        found = known_defects(recorded(mcore=release), recorded(risky, mcore=release))
        assert [c.outcome for c in found if c.name.endswith("F062")] == expected
    both = known_defects(recorded(risky, mcore="0.18.0"), recorded(risky, mcore="0.18.0"))
    assert {c.outcome for c in both} == {"pass"}


def test_runs_of_other_stacks_have_no_defects_of_megatron():
    assert known_defects(recorded(torch="2.9"), recorded({"tp": 2}, torch="2.9")) == []


def test_a_value_that_no_setting_has_leaves_it_unknown():
    strange = recorded({"cuda_graph_impl": "of-tomorrow", "expert_bias": True}, mcore="0.17.0")
    found = known_defects(recorded({"expert_bias": True}, mcore="0.17.0"), strange)
    assert any(c.outcome == "inconclusive" and "depends on cuda_graph_impl" in c.reason for c in found)


def test_a_long_value_is_cut_for_a_person():
    assert len(show("x" * 5000)) < 300
    assert len(show(tuple("y" * 5000 for _ in range(9)))) < 300
    assert show("bf16") == "bf16"
