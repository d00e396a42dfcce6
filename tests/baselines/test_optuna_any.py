"""Any sampler of Optuna by its name."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.optuna_any import OptunaAny, samplers
from tests.baselines.small_task import campaign, small_task

GRID = {"search_space": {"tp": [1, 2, 4], "recompute": ["none", "full"], "manual_gc": [True]}}
ARGUMENTS = {"GridSampler": GRID, "CmaEsSampler": {"popsize": 4}}


class TestContract(TunerContract):
    @pytest.fixture(params=["NSGAIISampler", "CmaEsSampler"])
    def task(self, request):
        return small_task({"sampler": request.param, "arguments": ARGUMENTS.get(request.param, {})}, seed=3)

    @pytest.fixture
    def factory(self):
        return OptunaAny


def test_the_known_samplers_are_optunas():
    expected = {"BruteForce", "CmaEs", "GP", "Grid", "NSGAII", "NSGAIII", "QMC", "Random", "TPE"}
    assert {f"{name}Sampler" for name in expected} <= set(samplers())
    assert "PartialFixedSampler" not in samplers()


@pytest.mark.parametrize("kind", sorted(samplers()))
def test_every_sampler_proposes_legal_recipes_that_differ(kind):
    task = small_task({"sampler": kind, "arguments": ARGUMENTS.get(kind, {}), "startup": 3}, seed=2)
    log = campaign(OptunaAny(task), task, runs=8)
    digests = {task.baseline.digest, *(proposal.recipe.digest for proposal, _ in log)}
    assert len(digests) == len(log) + 1 >= 5
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)


def test_a_grid_is_searched_to_its_end_and_nowhere_else():
    task = small_task({"sampler": "GridSampler", "arguments": GRID, "startup": 1}, seed=2)
    tuner = OptunaAny(task)
    log = campaign(tuner, task, runs=30)
    assert 3 <= len(log) <= 6
    assert tuner.stop_reason == "the sampler has suggested every point it has"
    for proposal, _ in log:
        assert task.space.value(proposal.recipe, "manual_gc") is True
        assert task.space.value(proposal.recipe, "mbs") == task.space.value(task.baseline, "mbs")


def test_arguments_may_be_json_text():
    task = small_task({"sampler": "NSGAIISampler", "arguments": '{"population_size": 4}'})
    assert campaign(OptunaAny(task), task, runs=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "CmaESSampler"}, "no sampler CmaESSampler; did you mean CmaEsSampler"),
        ({"sampler": "PartialFixedSampler"}, "no sampler"),
        ({"arguments": {"population": 3}}, "option arguments of TPESampler cannot be used"),
        ({"arguments": "[1]"}, "a mapping of names"),
        ({"arguments": "{"}, "a mapping of names"),
        ({"sampler": "NSGAIISampler", "arguments": {"population_size": 1}}, "cannot be used"),
        ({"sampler": "GridSampler"}, "needs its grid"),
        ({"sampler": "GridSampler", "arguments": {"search_space": {"warp": [1]}}}, "the grid names warp"),
        ({"sampler": "GridSampler", "arguments": {"search_space": {"tp": [3]}}}, r"the grid has \[3\] for tp"),
        ({"depth": 1}, "has no option depth"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        OptunaAny(small_task(options))
