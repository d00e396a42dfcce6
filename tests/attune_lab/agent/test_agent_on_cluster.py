"""The catalog against the real space, and the tuner against uniform draws on simulated clusters."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

import numpy as np
import pytest

from attune_lab.agent import AttuneTuner
from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import Proposal, TuningTask
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.gate import CampaignGate
from attune_lab.lessons.catalog import VERBS, load
from attune_lab.parameters import approvable
from attune_lab.recipe.carry import carry_over
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load as load_recipe
from attune_lab.space import SearchSpace
from attune_lab.testing import TunerContract, UniformDraws
from simulator.hardware import parse_cluster

CLUSTER = parse_cluster("64xH200-SXM5-141GB")
COST_MODEL = SimulatedCostModel(CLUSTER)
MODELS = ("glm-4.5", "mixtral-8x22b", "llama-3.1-405b", "deepseek-v3")
METRICS = {
    "oom", "mem_peak_frac", "frag_frac", "gemm_eff", "bubble_frac", "stage_imbalance", "host_gap_frac", "step_cv",
    "exposed_tp_frac", "exposed_ep_frac", "exposed_dp_frac", "exposed_pp_frac", "exposed_cp_frac",
    "tokens_per_expert", "model_state_frac", "timed_iterations", "trial_failed", "full_recompute",
}  # fmt: skip


@dataclass(frozen=True)
class Plenty:
    total: float = 1e9
    left_for_search: float = 1e9
    run_cost: float = 1.0


def spaces() -> list[SearchSpace]:
    recipes = [carry_over(load_recipe(name).recipe, CLUSTER, COST_MODEL).recipe for name in MODELS]
    return [SearchSpace(recipe, CLUSTER, approvable()) for recipe in recipes]


def test_every_move_speaks_the_language_of_the_space() -> None:
    choices: dict[str, set[object]] = {}
    for space in spaces():
        for key, parameter in space.parameters.items():
            choices.setdefault(key, set()).update(parameter.choices)
    choices["fp8"].add("mxfp8")  # offered on Blackwell only
    for lesson in load().lessons:
        for move in lesson.moves:
            for key, step in move.items():
                assert key in {"layout", "neighbour"} or key in choices, (lesson.id, key)
                assert step in VERBS or step in choices[key], (lesson.id, key, step)


def test_every_precondition_of_an_action_can_be_known() -> None:
    known = METRICS | set(effective(load_recipe("deepseek-v3").recipe, CLUSTER))
    from attune_lab.recipe.expressions import compile_expression

    for lesson in load().lessons:
        for text in lesson.preconditions:
            assert compile_expression(text).names <= known, (lesson.id, text)


class TestContract(TunerContract):
    """The agent, and the draws it is compared with, on a real space, compound parameters and variables included."""

    @pytest.fixture(params=[AttuneTuner, UniformDraws])
    def factory(self, request):
        return request.param

    @pytest.fixture
    def task(self):
        baseline = carry_over(load_recipe("deepseek-v3").recipe, CLUSTER, COST_MODEL).recipe
        return TuningTask(baseline, CLUSTER, SearchSpace(baseline, CLUSTER), COST_MODEL, Plenty(), 0)


def test_every_proposal_passes_the_configuration_check_of_the_gate() -> None:
    """Approvals apart, nothing a tuner can reach in these spaces is another training run."""
    gate, rng = CampaignGate(CLUSTER), np.random.default_rng(5)
    for name in ("glm-4.5", "llama-3.1-405b"):
        baseline = carry_over(load_recipe(name).recipe, CLUSTER, COST_MODEL).recipe
        space = SearchSpace(baseline, CLUSTER)
        for _ in range(10):
            verdict = gate.configuration(baseline, space.sample(rng))
            known = [c for c in verdict.checks if c.outcome == "reject" and not re.search(r"\.F\d+$", c.name)]
            assert not known


def gain(tuner_class: type, space: SearchSpace, *, seed: int, runs: int) -> float:
    """Gain of the fastest recipe found, measured again, over the baseline."""
    cluster = SimulatedCluster(CLUSTER, seed)
    tuner = tuner_class(TuningTask(space.baseline, CLUSTER, space, COST_MODEL, Plenty(), seed))
    before = cluster.run(space.baseline, 20, label="000-baseline-0")
    tuner.tell(Proposal(space.baseline), before)
    seen = {space.baseline.digest: before}
    while len(seen) <= runs and (proposal := tuner.ask()) is not None:
        assert not space.problems(proposal.recipe)
        report = seen.get(proposal.recipe.digest) or cluster.run(proposal.recipe, 8, label=f"{len(seen):03d}")
        tuner.tell(proposal, report)
        seen[proposal.recipe.digest] = report
    fastest = {r.mean_step_time_s: d for d, r in seen.items() if r.mean_step_time_s is not None}
    if before.mean_step_time_s is None or min(fastest) >= before.mean_step_time_s:
        return 0.0
    return before.mean_step_time_s / min(fastest) - 1.0


@pytest.mark.parametrize("model", ["minimax-m2"])
def test_it_beats_uniform_draws_on_simulated_clusters(model: str) -> None:
    space = SearchSpace(carry_over(load_recipe(model).recipe, CLUSTER, COST_MODEL).recipe, CLUSTER)
    ours, uniform = (
        statistics.fmean(gain(tuner, space, seed=seed, runs=8) for seed in range(3))
        for tuner in (AttuneTuner, UniformDraws)
    )
    assert ours > uniform
