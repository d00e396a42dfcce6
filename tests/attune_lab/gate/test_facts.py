"""The facts of a run: names, types, what follows from what, and what is left unknown."""

import pytest

from attune_lab.contracts import UserError
from attune_lab.gate.facts import LIBRARIES, facts_from, facts_of, vocabulary
from attune_lab.recipe import Recipe
from attune_lab.recipe.registry import registry
from tests.attune_lab.recipe.recipes_for_tests import cluster, moe


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"moe_aux_loss_coeff": 0.01}, "aux_loss_coeff", 0.01),
        ({"disable_bias_linear": True}, "add_bias_linear", False),
        ({"no_load_optim": True}, "load_optim", False),
        ({"no_load_optim": False}, "load_optim", True),
        ({"enable_cuda_graph": False}, "cuda_graph_impl", "none"),
        ({"grad_accum": 4}, "num_microbatches", 4),
        ({"mcore": "0.16.1rc2"}, "mcore", (0, 16, 1)),
        ({"stack": "Megatron-LM"}, "stack", "megatron_lm"),
        ({"stack": "torchtitan"}, "stack", "torchtitan"),
        ({"world_size": 8, "tp": 2}, "dp", 4),
        ({"dp": 4, "tp": 2}, "world_size", 8),
        ({"gbs": 64, "mbs": 2, "dp": 4}, "num_microbatches", 8),
        ({"mbs": 2, "dp": 4, "grad_accum": 8}, "gbs", 64),
        ({"tp": 4, "num_experts": 8}, "etp", 4),
        ({"recompute_modules": ["moe"]}, "recompute_modules", ("moe",)),
        ({"ragged": None}, "sequence_parallel", False),
    ],
    ids=str,
)
def test_what_is_given_and_what_follows(given, name, value):
    assert facts_from(given)[name] == value


def test_what_nobody_says_is_absent():
    known = facts_from({})
    unsaid = {name for name, entry in vocabulary().items() if "default" not in entry}
    assert unsaid == {"ragged", "lengths_divide", "average_tokens_across_devices"}
    assert not {*unsaid, *LIBRARIES} - {"container"} & set(known)
    assert known["container"] is None
    assert "te" not in facts_from({"te": "nightly"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_expert": 8}, "num_experts"),
        ({"qqqqqqqq": 8}, "facts.yaml"),
        ({"tp": "two"}, "tp"),
        ({"ragged": "yes"}, "ragged"),
        ({"zero_stage": True}, "zero_stage"),
        ({"world_size": "8"}, "world_size"),
        ({"mcore": 16}, "mcore"),
        ({"stack": 3}, "stack"),
        ({"env_NCCL_ALGO": 3}, "env_NCCL_ALGO"),
    ],
    ids=str,
)
def test_what_is_no_fact_is_refused_by_name(given, words):
    with pytest.raises(UserError, match=words):
        facts_from(given)


def test_sizes_of_nothing_raise_nothing():
    assert facts_from({"tp": 0, "mbs": 0, "gbs": -1, "world_size": 0})["dp"] == 1


@pytest.mark.parametrize(
    ("edits", "name", "value"),
    [
        ({}, "ragged", False),
        ({"eod_mask_loss": True}, "ragged", True),
        ({"packed": True}, "ragged", True),
        ({"packed": True}, "qkv_format", "thd"),
        ({}, "qkv_format", "sbhd"),
        ({"load": "/x"}, "resume", True),
        ({"load": "/x", "finetune": True}, "resume", False),
        ({}, "stack", "megatron_lm"),
        ({}, "te_vendor", "nvidia"),
    ],
    ids=str,
)
def test_what_a_recipe_tells(edits, name, value):
    assert facts_of(moe(**edits), cluster())[name] == value


def test_the_accelerator_tells_whose_transformer_engine_it_is():
    assert facts_of(moe(), cluster("64xMI355X"))["te_vendor"] == "amd"


def test_versions_of_the_run_count_before_those_of_the_recipe():
    named = Recipe.from_canonical({**moe().canonical(), "versions": {"mcore": "0.16.0"}})
    assert facts_of(named, cluster())["mcore"] == (0, 16, 0)
    assert facts_of(named, cluster(), {"mcore": "0.19.1"})["mcore"] == (0, 19, 1)
    assert "mcore" not in facts_of(moe(), cluster())


def test_every_fact_says_what_it_means_and_shadows_no_setting():
    assert not set(vocabulary()) & set(registry())
    for name, entry in vocabulary().items():
        assert entry["means"], name
        assert set(entry) <= {"means", "default", "also"}, name
