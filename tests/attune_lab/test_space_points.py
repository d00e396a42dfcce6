"""The points of a space: their recipes, how many are legal, each of them, and drawing one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from attune_lab.axes import ACCOUNTS
from attune_lab.contracts import UserError
from attune_lab.parameters import LAYOUT, Parameter
from attune_lab.recipe import Recipe
from attune_lab.recipe.files import load
from attune_lab.recipe.recipe import Value
from attune_lab.space import SearchSpace
from simulator.hardware import parse_cluster
from tests.attune_lab.recipe.recipes_for_tests import cluster, dense, moe

APPROVALS = ("fp8", "grad_reduce_in_fp32", "moments")
STUDY = [
    (name, f"{gpus}x{kind}")
    for name in ("llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2")
    for gpus, kind in ((64, "H200-SXM5-141GB"), (128, "B200-SXM-180GB"))
]
SMALL = {"num_layers": 4, "gbs": 8, "tp": 1, "pp": 1, "vpp": None, "sequence_parallel": None, "mbs": 1}


def narrowed(baseline: Recipe, hardware: str, keep: dict[str, int], approvals: tuple[str, ...] = ()) -> SearchSpace:
    """A space in which a parameter has as many choices as ``keep`` says, its own among them, and others only that.

    What is written where a parameter does not apply (its first choice) stays a choice, and so does what is a layer.
    """
    space = SearchSpace(baseline, cluster(hardware), approvals)
    own = space.values(baseline)

    def kept(key: str, parameter: Parameter) -> tuple[Value, ...]:
        first = 2 if key in ACCOUNTS else max(keep.get(key, 0), bool(parameter.applies_if.names))
        return tuple(choice for choice in parameter.choices if choice in (own[key], *parameter.choices[:first]))

    space.parameters = {key: replace(each, choices=kept(key, each)) for key, each in space.parameters.items()}
    return space


def product_of(space: SearchSpace) -> list[dict]:
    choices = [parameter.choices for parameter in space.parameters.values()]
    return [dict(zip(space.parameters, values, strict=True)) for values in itertools.product(*choices)]


def check_against_everything(space: SearchSpace) -> None:
    """Count, enumeration and the quick checks against the rules, applied to every choice of a value per parameter."""
    legal = {}
    for point in product_of(space):
        recipe = space.recipe(point)
        holds = not space.problems(recipe)
        assert space.allows(point) == space.is_legal(recipe) == holds, point
        if holds:
            legal[recipe.digest] = recipe
    points = list(space.points())
    assert len(points) == space.count() == len(legal)
    assert {space.recipe(point).digest for point in points} == legal.keys()
    for point in points:
        recipe = space.recipe(point)
        assert space.point(recipe) == point
        assert all(space.value(recipe, key) == value for key, value in point.items())


@pytest.mark.parametrize(
    ("baseline", "hardware", "keep"),
    [
        (dense(**SMALL), "4xH100-SXM5-80GB", {**dict.fromkeys(LAYOUT, 3), "sequence_parallel": 2}),
        (dense(**SMALL | {"num_layers": 6}), "4xB200-SXM-180GB", {"pp": 3, "vpp": 3, "tp": 2, "tp_comm_overlap": 2}),
        (moe(**SMALL, ep=1), "2xH100-SXM5-80GB", {
            **dict.fromkeys(LAYOUT, 2), "mbs": 1, "ep_overlap": 2, "env.CUDA_DEVICE_MAX_CONNECTIONS": 3,
        }),
        (moe(**SMALL, ep=1), "2xH100-SXM5-80GB", {
            "ep": 2, "recompute": 9, "ep_overlap": 2, "delay_wgrad": 2, "cuda_graph": 3, "overlap_grad_reduce": 2,
        }),
        (moe(**SMALL, ep=2, shared_expert_size=512, shared_expert_overlap=True), "2xH100-SXM5-80GB", {
            "ep": 2, "dispatcher": 4, "ep_overlap": 2, "shared_expert_overlap": 2, "cuda_graph": 3,
            "env.PYTORCH_CUDA_ALLOC_CONF": 2,
        }),
        (dense(**SMALL | {"pp": 2, "vpp": 2}, overlap_param_gather_with_optimizer_step=True, defer_embedding_wgrad=True,
               ckpt_format="torch"), "4xH100-SXM5-80GB", {
            "pp": 2, "vpp": 2, "overlap_grad_reduce": 2, "overlap_param_gather": 2,
        }),
    ],
    ids=["layouts", "what counts as a layer", "queues", "recomputation and graphs", "shared experts", "followers"],
)  # fmt: skip
def test_every_choice_of_values_is_counted_rightly(baseline, hardware, keep) -> None:
    check_against_everything(narrowed(baseline, hardware, keep))


@st.composite
def small_spaces(draw: st.DrawFn) -> SearchSpace:
    """A legal baseline on a few accelerators, with all layouts or some, and a few parameters beside them."""
    gpus = draw(st.sampled_from([1, 2, 4, 6]))
    kind = draw(st.sampled_from(["H100-SXM5-80GB", "B200-SXM-180GB", "A100-SXM4-80GB"]))
    make = draw(st.sampled_from([dense, moe]))
    pp = draw(st.sampled_from([n for n in (1, 2, 3) if gpus % n == 0]))
    tp = draw(st.sampled_from([n for n in (1, 2) if gpus % (n * pp) == 0]))
    edits = {
        "num_layers": draw(st.integers(3, 9)),
        "gbs": 12,
        "pp": pp,
        "tp": tp,
        "sequence_parallel": True if make is moe and tp > 1 else draw(st.sampled_from([None, False, True])),
        "vpp": draw(st.sampled_from([None, 1])),
        "overlap_grad_reduce": draw(st.booleans()),
        "overlap_param_gather": draw(st.sampled_from([None, False])),
        "bucket_size": draw(st.sampled_from([None, 50_000_000])),
        "account_loss": draw(st.sampled_from([None, True])),
        "recompute_granularity": draw(st.sampled_from([None, "full"])),
    }
    if edits["recompute_granularity"]:
        edits |= {"recompute_method": "uniform", "recompute_num_layers": draw(st.integers(1, 2))}
    if make is moe:
        edits |= {
            "ep": 1,
            "etp": draw(st.sampled_from([None, 1])),
            "dispatcher": draw(st.sampled_from(["alltoall", "allgather"])),
        }
    baseline = make(**edits)
    full = SearchSpace(baseline, cluster(f"{gpus}x{kind}"), APPROVALS)
    assume(not full.problems(baseline))
    keep, left = {}, 200
    for key in draw(st.permutations(list(full.parameters))):
        count = min(draw(st.integers(1, 3)) + 1, len(full.parameters[key].choices))
        if left >= count:
            keep[key], left = count, left // count
    return narrowed(baseline, f"{gpus}x{kind}", keep, APPROVALS)


@settings(max_examples=12, deadline=None)
@given(small_spaces())
def test_random_small_spaces_are_counted_rightly(space) -> None:
    check_against_everything(space)
    assert space.recipe(space.point(space.baseline)) == space.baseline
    assert space.allows(space.point(space.baseline))


def study_space(name: str, hardware: str) -> SearchSpace:
    return SearchSpace(load(name).recipe, parse_cluster(hardware), APPROVALS)


@pytest.mark.parametrize(("name", "hardware"), STUDY)
def test_the_tables_agree_with_the_rules_around_legal_points(name, hardware) -> None:
    """Legal points of the study models with a few values changed at random."""
    space, rng = study_space(name, hardware), np.random.default_rng(0)
    assert space.recipe(space.point(space.baseline)) == space.baseline
    verdicts = Counter()
    for _ in range(60):
        recipe = space.sample(rng)
        point = space.point(recipe)
        assert space.recipe(point) == recipe
        assert space.problems(recipe) == []
        for key in rng.choice(list(space.parameters), size=rng.integers(1, 6), replace=False):
            choices = space.parameters[key].choices
            point[key] = choices[rng.integers(len(choices))]
        recipe = space.recipe(point)
        holds = not space.problems(recipe)
        assert space.allows(point) == space.is_legal(recipe) == holds, point
        verdicts[holds] += 1
    assert min(verdicts.values()) >= 3


@pytest.mark.parametrize(("name", "hardware"), STUDY)
def test_every_choice_of_every_parameter_is_legal_somewhere(name, hardware) -> None:
    """Seen among draws: a choice that no legal point takes has no place in the description."""
    space, rng = study_space(name, hardware), np.random.default_rng(1)
    left = {(key, choice) for key, parameter in space.parameters.items() for choice in parameter.choices}
    left -= {item for layout in space.enumerate_layouts() for item in layout.items()}
    for _ in range(500):
        left -= space.point(space.sample(rng)).items()
    assert not left


def test_draws_are_uniform() -> None:
    keep = {"tp": 2, "pp": 2, "ep": 2, "dispatcher": 4, "ep_overlap": 2, "delay_wgrad": 2, "overlap_grad_reduce": 2}
    space = narrowed(moe(**SMALL, ep=1), "2xH100-SXM5-80GB", keep)
    rng = np.random.default_rng(0)
    drawn = Counter(space.sample(rng).digest for _ in range(40 * space.count()))
    assert drawn.keys() == {space.recipe(point).digest for point in space.points()}
    assert chisquare(list(drawn.values())).pvalue > 0.01


def test_a_seed_draws_the_same_recipes() -> None:
    space = study_space(*STUDY[0])
    assert space.sample(np.random.default_rng(5)) == space.sample(np.random.default_rng(5))


def test_a_partial_point_is_filled_up_by_the_baseline() -> None:
    space = SearchSpace(moe(), cluster())
    assert space.recipe({}) == space.baseline
    assert space.recipe({"recompute": "full"}) == space.apply(space.baseline, {"recompute": "full"})
    alone = space.recipe({"pp": 1, "vpp": 4, "account_loss": True})
    assert (alone.get("vpp"), alone.get("account_loss")) == (None, False)


def test_own_split_is_among_the_points() -> None:
    space = SearchSpace(moe(pp_layout="Et*3|(t*4|)*6t*5L", vpp=None), cluster())
    assert space.recipe(space.point(space.baseline)) == space.baseline
    assert space.allows(space.point(space.baseline))


@pytest.mark.parametrize(
    ("point", "words"),
    [({"gbs": 1}, "gbs is not in the search space"), ({"tp": 3}, "tp has no choice 3; choose one of 1, 2, 4, 8")],
)
def test_points_outside_the_space_are_refused(point, words) -> None:
    space = SearchSpace(moe(), cluster())
    for use in (space.recipe, space.allows):
        with pytest.raises(UserError, match=words):
            use(point)


def test_a_space_without_a_legal_point_says_so() -> None:
    space = SearchSpace(moe(ddp_average_in_collective=True, per_token_loss=True), cluster())
    assert space.count() == 0
    assert list(space.points()) == []
    with pytest.raises(UserError, match=r"legal on 64xH100-SXM5-80GB: .*calculate-per-token-loss"):
        space.sample(np.random.default_rng(0))
