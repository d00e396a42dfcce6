"""The search space: legal, consistent, and closed over what a tuner may touch."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.recipe.constraints import can_start
from attune_lab.recipe.coupling import account_flags, even_layout, split_settings
from attune_lab.recipe.effective import effective, stage_layers
from attune_lab.recipe.layouts import symbols, virtual_stages
from attune_lab.recipe.shape import filled
from attune_lab.space import SearchSpace
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace(moe(), cluster())


def test_baseline_is_in_its_own_space(space) -> None:
    assert space.problems(space.baseline) == []
    assert space.changed(space.baseline, space.baseline) == {}
    for key, value in space.values(space.baseline).items():
        assert value in space.parameters[key].choices


def test_setting_own_values_changes_nothing(space) -> None:
    for key, value in space.values(space.baseline).items():
        assert space.apply(space.baseline, {key: value}) == space.baseline, key


@pytest.mark.parametrize(
    "edits",
    [
        {"pp_layout": "Et*3|(t*4|)*6t*5L", "vpp": None},
        {"first_stage_layers": 6, "last_stage_layers": 6, "vpp": None},
        {"layers_per_vstage": 4, "vpp": None},
    ],
    ids=["layout", "first and last", "layers per virtual stage"],
)
def test_any_spelling_of_the_split_is_kept_and_restored(edits) -> None:
    space = SearchSpace(moe(**edits), cluster())
    for key, value in space.values(space.baseline).items():
        assert space.apply(space.baseline, {key: value}) == space.baseline, key
    away = space.apply(space.baseline, {"pp": 8, "vpp": 1})
    assert space.problems(away) == []
    back = {"pp": 4, "vpp": space.value(space.baseline, "vpp")}
    assert space.apply(away, back) == space.baseline


def test_an_account_that_cannot_divide_stays_illegal(space) -> None:
    edited = space.apply(space.baseline, {"account_loss": True})
    assert edited.get("account_loss") is True
    assert any("--account-for-loss-in-pipeline-split" in problem for problem in space.problems(edited))


def test_every_edit_can_be_taken_back(space) -> None:
    for key, parameter in space.parameters.items():
        own = space.value(space.baseline, key)
        for choice in parameter.choices:
            edited = space.apply(space.baseline, {key: choice})
            assert space.value(edited, key) == choice or (key, choice) == ("delay_wgrad", True)
            assert space.value(space.apply(edited, {key: own}), key) == own


def test_samples_are_legal(space) -> None:
    rng = np.random.default_rng(0)
    recipes = [space.sample(rng) for _ in range(25)]
    assert all(space.problems(recipe) == [] for recipe in recipes)
    assert len({recipe.digest for recipe in recipes}) == 25
    rng = np.random.default_rng(0)
    assert space.sample(rng) == recipes[0]


def test_enumerated_layouts_are_the_legal_ones(space) -> None:
    """Against the rules themselves, on random combinations of sizes."""
    enumerated = {tuple(layout.values()) for layout in space.enumerate_layouts()}
    rng = np.random.default_rng(1)
    sizes = [space.parameters[key].choices for key in ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs")]
    legal = 0
    for _ in range(400):
        layout = {key: int(rng.choice(choice)) for key, choice in zip(space.parameters, sizes, strict=False)}
        recipe = space.apply(space.baseline, layout)
        starts = can_start(effective(recipe, cluster())) and (layout["pp"] > 1 or layout["vpp"] == 1)
        assert (tuple(layout.values()) in enumerated) == starts, layout
        legal += starts
    assert legal > 5


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"gbs": 512}, "training objective"),
        ({"lr": 1e-3}, "training objective"),
        ({"num_layers": 16}, "training objective"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "not approved"),
        ({"tp": 3}, "does not|whole multiple"),
        ({"log_interval": 7}, "--log-interval differs from the baseline and is not in the search space"),
        ({"num_layers": None}, "--num-layers"),
    ],
)
def test_problems_name_what_left_the_space(space, edits, words) -> None:
    assert any(re.search(words, problem) for problem in space.problems(moe(**edits)))


def test_environment_outside_the_space(space) -> None:
    assert space.problems(moe().with_environment({"NCCL_ALGO": "Ring"})) == [
        "env.NCCL_ALGO differs from the baseline and is not in the search space"
    ]


def test_parameters_fit_the_model() -> None:
    keys = SearchSpace(dense(), cluster()).parameters
    assert "ep" not in keys
    assert "dispatcher" not in keys
    assert keys["recompute"].choices == ("none", "layernorm", "mlp", "layernorm+mlp", "full")
    assert "fp8" not in keys
    approved = SearchSpace(dense(), cluster(), approvals=("fp8", "moments")).parameters
    assert approved["fp8"].choices == ("none", "tensorwise", "blockwise")
    assert "moments" in approved
    with pytest.raises(UserError, match="can be approved"):
        SearchSpace(dense(), cluster(), approvals=("lr",))
    assert "env.CUDA_DEVICE_MAX_CONNECTIONS" not in SearchSpace(dense(), cluster("64xB200-SXM-180GB")).parameters


def test_own_combination_becomes_a_choice() -> None:
    odd = moe(recompute_granularity="full", recompute_method="block", recompute_num_layers=3)
    space = SearchSpace(odd, cluster())
    assert space.value(odd, "recompute") == "recipe"
    assert space.parameters["recompute"].choices[-2:] == ("recipe", "full")
    assert space.apply(space.apply(odd, {"recompute": "none"}), {"recompute": "recipe"}) == odd


def test_coupled_settings_follow(space) -> None:
    full = space.apply(space.baseline, {"recompute": "full"})
    assert (full.get("recompute_method"), full.get("recompute_num_layers")) == ("uniform", 1)
    back = space.apply(full, {"recompute": "moe_act"})
    assert (back.get("recompute_method"), back.get("recompute_modules")) == (None, ("moe_act",))

    single = space.apply(space.baseline, {"tp": 1})
    assert single.get("sequence_parallel") is False
    assert space.apply(single, {"tp": 4}).get("sequence_parallel") is True

    assert space.apply(space.baseline, {"overlap_grad_reduce": False}).get("overlap_param_gather") is False
    assert space.apply(space.baseline, {"pp": 1}).get("vpp") is None

    queues = space.apply(space.baseline, {"env.CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    assert queues.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert space.problems(queues)

    graphs = {"cuda_graph": "te:attn", "env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert space.apply(space.baseline, graphs).environment["NCCL_GRAPH_REGISTER"] == "0"


def test_inherited_expert_tp_keeps_its_size() -> None:
    space = SearchSpace(moe(etp=None, ep=4), cluster())
    assert space.value(space.apply(space.baseline, {"tp": 4}), "etp") == 2


def test_unknown_parameters_and_choices_are_named(space) -> None:
    with pytest.raises(UserError, match="gbs is not in the search space"):
        space.apply(space.baseline, {"gbs": 1})
    with pytest.raises(UserError, match="recompute has no choice"):
        space.apply(space.baseline, {"recompute": "some"})


def test_neighbours(space) -> None:
    assert space.neighbours(space.baseline, "tp") == (1, 4)
    assert space.neighbours(space.baseline, "recompute") == ("moe_act",)
    assert space.neighbours(space.baseline, "dispatcher") == ("allgather", "flex:deepep", "flex:hybridep")


@settings(max_examples=60)
@given(
    layers=st.sampled_from([61, 92, 94, 126, 62, 56, 32, 78]) | st.integers(8, 128),
    pp=st.sampled_from([2, 3, 4, 8, 16]),
    chunks=st.integers(1, 4),
    flags=st.tuples(st.booleans(), st.booleans()),
    mtp=st.integers(0, 1),
)
def test_any_depth_splits_legally(layers, pp, chunks, flags, mtp) -> None:
    assume(layers >= pp * chunks)
    split = split_settings(layers, pp, chunks, flags=flags, mtp_layers=mtp)
    recipe = moe(num_layers=layers, pp=pp, gbs=16 * 64, mtp_num_layers=mtp or None, **split)
    values = effective(recipe, cluster("48xH100-SXM5-80GB"))
    assert sum(values["stage_layers"]) == layers
    assert (values["vpp"] or 1) == chunks
    assert max(values["stage_layers"]) - min(values["stage_layers"]) <= max(2, chunks)


@given(layers=st.integers(1, 130), parts=st.integers(1, 32), mtp=st.integers(0, 2))
def test_even_layout(layers, parts, mtp) -> None:
    layout = even_layout(layers, parts, mtp_layers=mtp)
    counts = [stage.count("t") for stage in virtual_stages(layout)]
    assert len(counts) == parts
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == min(counts)
    assert symbols(layout) == "E" + "t" * layers + "m" * mtp + "L"


@given(layers=st.integers(1, 130), parts=st.integers(2, 16))
def test_account_flags_agree_with_the_split(layers, parts) -> None:
    for embedding, loss in account_flags(layers, parts):
        values = filled(moe(num_layers=layers, pp=parts, account_embedding=embedding, account_loss=loss))
        assert sum(stage_layers(values)) == layers
        assert min(stage_layers(values)) >= 1
