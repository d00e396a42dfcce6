"""The known optimum: equal to the best of all points, each priced alone, and never above what its bounds say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attune_lab.cluster import SimulatedCluster
from attune_lab.contracts import UserError
from attune_lab.parameters import approvable
from attune_lab.recipe import Recipe
from attune_lab.recipe.jobs import jobs_for
from attune_lab.space import SearchSpace
from attune_lab.study.bounds import Bounds
from attune_lab.study.branching import groups
from attune_lab.study.choices import Choices
from attune_lab.study.oracle import Oracle, optimum
from attune_lab.workbench import open_workbench
from simulator.curves import Signature
from simulator.hardware import parse_cluster
from simulator.world import TRIGGERS, Conditions, HiddenDefect, World
from tests.attune_lab.recipe.recipes_for_tests import dense, moe

HARSH = Conditions(physics=2, residuals=2, defects=3)
STUDY = ("llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2")
SIZES = ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs")

LARGE_DENSE = dense(
    num_layers=48, hidden=8192, heads=64, ffn=28672, gbs=32, tp=8, pp=1, vpp=None, recompute_granularity="full",
    recompute_method="uniform", recompute_num_layers=1,
)  # fmt: skip
LARGE_MOE = moe(num_layers=16, hidden=4096, moe_ffn=4096, num_experts=16, gbs=32, tp=1, pp=1, vpp=None, mbs=1)

H200, B200 = "8xH200-SXM5-141GB", "8xB200-SXM-180GB"
OVERLAP = {
    "ep": 4, "pp": 2, "vpp": 3, "mbs": 2, "dispatcher": 4, "ep_overlap": 2, "delay_wgrad": 2, "recompute": 3,
    "env.CUDA_DEVICE_MAX_CONNECTIONS": 3,
}  # fmt: skip
SPACES = [
    (LARGE_DENSE, H200, {**dict.fromkeys(SIZES, 3), "recompute": 5, "sequence_parallel": 2, "cross_entropy_fusion": 2,
                         "env.PYTORCH_CUDA_ALLOC_CONF": 2}),
    (LARGE_DENSE, H200, {"tp": 4, "pp": 3, "vpp": 2, "tp_comm_overlap": 2, "sequence_parallel": 2, "cuda_graph": 2,
                         "bucket_size": 4, "manual_gc": 2, "overlap_grad_reduce": 2, "recompute": 2}),
    (LARGE_MOE, H200, OVERLAP),
    (LARGE_MOE, H200, {"ep": 3, "tp": 2, "etp": 2, "dispatcher": 4, "recompute": 6, "moe_router_fusion": 2,
                       "cuda_graph": 2, "env.NVTE_FWD_LAYERNORM_SM_MARGIN": 2}),
    (LARGE_MOE, B200, {"ep": 3, "pp": 2, "fp8": 3, "moments": 2, "grad_reduce_in_fp32": 2, "dispatcher": 3,
                       "ep_overlap": 2, "recompute": 2, "env.NCCL_NVLS_ENABLE": 2}),
]  # fmt: skip


def narrowed(baseline: Recipe, hardware: str, keep: dict[str, int]) -> SearchSpace:
    """A space in which a parameter has as many choices as ``keep`` says, its own among them, and others only that."""
    space = SearchSpace(baseline, parse_cluster(hardware), [key for key in approvable() if key in keep])
    own = space.values(baseline)
    few = {}
    for key, parameter in space.parameters.items():
        first = max(keep.get(key, 0), 2 if key.startswith("account") else bool(parameter.applies_if.names))
        choices = tuple(c for c in parameter.choices if c in (own[key], *parameter.choices[:first]))
        few[key] = replace(parameter, choices=choices)
    space.parameters = few
    return space


def best_of_all(space: SearchSpace, world: World) -> tuple[float, int]:
    """Step time of the fastest point that fits and is not faulty, each priced as a recipe; and how many there are."""
    oracle = Oracle(space, world)
    recipes = [space.recipe(point) for point in space.points()]
    truth = world.truth(jobs_for(recipes, world.cluster))
    for place in np.argsort(truth.step_time_s):
        if truth.fits[place] and not oracle.is_faulty(recipes[place]):
            return float(truth.step_time_s[place]), len(recipes)
    raise AssertionError("nothing fits")


@pytest.mark.parametrize(("baseline", "hardware", "keep"), SPACES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_is_the_best_of_all_points(baseline, hardware, keep, seed):
    space = narrowed(baseline, hardware, keep)
    world = World.draw(seed, parse_cluster(hardware), conditions=HARSH)
    expected, points = best_of_all(space, world)
    found = Oracle(space, world).optimum()
    assert 300 < points < 10_000
    assert found.proven
    assert found.bound_s == found.step_time_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_no_hidden_defect_is_in_it_that_the_baseline_does_not_have(trigger):
    space = narrowed(LARGE_MOE, H200, OVERLAP)
    world = replace(World.draw(5, parse_cluster(H200)), hidden=(HiddenDefect(trigger, Signature()),))
    oracle = Oracle(space, world)
    found = oracle.optimum()
    assert oracle.is_faulty(found.recipe) == ()
    assert found.step_time_s == pytest.approx(best_of_all(space, world)[0], rel=1e-12)


def test_a_known_defect_of_the_installed_release_keeps_recipes_out():
    """F062: experts' gradients are clipped by a wrong norm under expert and tensor parallelism, up to 0.18."""
    world = World.draw(1, parse_cluster(H200), conditions=Conditions(defects=0))
    oracle = Oracle(SearchSpace(LARGE_MOE, world.cluster), world)
    both = LARGE_MOE.with_settings({"tp": 2, "ep": 4, "sequence_parallel": True})
    assert "F062" in oracle.is_faulty(both)
    assert oracle.is_faulty(LARGE_MOE.with_settings({"ep": 4})) == ()
    found = oracle.optimum()
    assert not (found.point["ep"] > 1 and found.point["tp"] > 1 and found.point["grouped_gemm"])


@pytest.mark.parametrize("name", STUDY)
@pytest.mark.parametrize("gpus", [64, 128])
def test_the_optimum_of_a_study_model_is_legal_faultless_and_a_run_shows_it(name, gpus):
    bench = open_workbench(name, f"{gpus}xH200-SXM5-141GB")
    world = World.draw(100, bench.cluster, conditions=Conditions(failures=0))
    found = optimum(bench, world)
    space = SearchSpace(bench.baseline, bench.cluster)
    assert found.proven
    assert space.problems(found.recipe) == []
    assert space.recipe(found.point) == found.recipe
    assert Oracle(space, world).true_gain(found.recipe) == pytest.approx(found.gain)
    assert found.gain >= 0
    report = SimulatedCluster(bench.cluster, 100, conditions=Conditions(failures=0)).run(found.recipe, 60, label="x")
    assert report.status == "ok"
    assert np.median(report.step_times_s[3:]) == pytest.approx(found.step_time_s, rel=0.02)
    assert found.tokens_per_s_per_gpu == pytest.approx(report.tokens_per_step / found.step_time_s / gpus)


def points_near(space: SearchSpace, point: dict, rng: np.random.Generator, count: int) -> list[dict]:
    """Legal points that differ from one in a few parameters."""
    found: list[dict] = []
    while len(found) < count:
        moved = rng.choice(list(space.parameters), rng.integers(1, 5), replace=False)
        other = point | {key: rng.choice(np.array(space.parameters[key].choices, dtype=object)) for key in moved}
        if space.allows(other):
            found.append(other)
    return found


@pytest.mark.parametrize("name", STUDY)
def test_no_point_is_faster_than_its_bounds(name):
    """Random points, and points near the optimum, bounded with fewer and fewer of their axes open."""
    bench = open_workbench(name, "64xH200-SXM5-141GB")
    space, rng = SearchSpace(bench.baseline, bench.cluster), np.random.default_rng(0)
    world = World.draw(100, bench.cluster, conditions=Conditions(physics=2))
    choices, best = Choices(space, world), optimum(bench, world).point
    near = points_near(space, best, rng, 400)
    drawn = [space.point(space.sample(rng)) for _ in range(200)]
    options = np.array([choices.options(point) for point in (best, *near, *drawn)])
    rows = {tuple(row): number for number, row in enumerate(choices.rows.tolist())}
    settled = set(range(choices.rows.shape[1]))
    places = np.array([rows[tuple(row)] for row in options[:, sorted(settled)].tolist()])
    truth = world.truth(choices.jobs(options))
    seconds = np.where(truth.fits, truth.step_time_s, np.inf)
    bounds = Bounds(choices, world)
    for group in groups(choices):
        settled |= set(group)
        exact = bounds.step_seconds(places, options, settled)
        assert (exact <= seconds * (1 + 1e-12)).all()
    assert np.allclose(exact[truth.fits], seconds[truth.fits], rtol=1e-12)
    assert np.isinf(exact[~truth.fits]).all()


def test_what_a_narrow_search_leaves_aside_is_said(monkeypatch):
    """A pass too narrow to prove anything says so, with a bound below the truth."""
    bench = open_workbench("glm-4.5", "64xH200-SXM5-141GB")
    world = World.draw(100, bench.cluster)
    proven = optimum(bench, world)
    monkeypatch.setattr("attune_lab.study.branching.WIDTHS", (20,))
    narrow = optimum(bench, world)
    assert not narrow.proven
    assert narrow.bound_s <= proven.step_time_s <= narrow.step_time_s


def test_a_space_without_a_recipe_that_fits_is_said():
    space = narrowed(LARGE_DENSE.with_settings({"num_layers": 120}), H200, {})
    world = World.draw(1, parse_cluster(H200))
    assert Oracle(space, world).true_gain(space.baseline) == -1
    with pytest.raises(UserError, match="no legal recipe fits"):
        Oracle(space, world).optimum()
