"""Feasible recipes first; subspaces that fail are left alone for a while."""

from __future__ import annotations

import pytest

from attune_lab.contracts import Proposal
from attune_lab.testing import TunerContract, UniformDraws
from baselines.feasible_first import BLOCKED, ENOUGH, FAILURES, LONGEST, Cells, FeasibleFirst
from tests.baselines.small_task import campaign, ended, small_task

SAFE = "feasible points first"


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return FeasibleFirst(UniformDraws)

    @pytest.fixture
    def task(self):
        return small_task(seed=3)


def test_enough_feasible_recipes_end_the_first_stage():
    task = small_task()
    log = campaign(FeasibleFirst(UniformDraws)(task), task, lambda recipe: ("ok", 1.0), runs=8)
    own = [proposal.reason.startswith(SAFE) for proposal, _ in log]
    assert own == [True] * (ENOUGH - 1) + [False] * (8 - ENOUGH + 1)


def test_the_first_stage_ends_although_nothing_runs():
    task = small_task()
    log = campaign(FeasibleFirst(UniformDraws)(task), task, lambda recipe: ("oom", 1.0), runs=LONGEST + 2)
    assert sum(proposal.reason.startswith(SAFE) for proposal, _ in log) == LONGEST


def test_candidates_are_safer_than_uniform_draws():
    def failures(factory):
        tasks = [small_task(seed=seed, num_experts=128, seq_len=8192) for seed in range(2)]
        logs = [campaign(factory(task), task, runs=3) for task in tasks]
        return sum(report.status == "oom" for log in logs for _, report in log)

    assert failures(FeasibleFirst(UniformDraws)) == 0 < failures(UniformDraws)


def test_the_inner_tuner_is_told_everything():
    task = small_task()
    tuner = FeasibleFirst(UniformDraws)(task)
    log = campaign(tuner, task, lambda recipe: ("ok", 1.0), runs=6)
    heard = [proposal.recipe.digest for proposal, _ in tuner.inner.told]
    assert heard == [task.baseline.digest, *(proposal.recipe.digest for proposal, _ in log)]
    assert len(set(heard)) == 7
    assert tuner.stop_reason == ""


def test_a_subspace_is_blocked_for_a_while_after_repeated_failures():
    cells, bad, good = Cells(), {("dispatcher", "allgather")}, {("recompute", "full")}
    for number in range(FAILURES):
        assert not cells.blocked(bad, number + 1)
        cells.record(bad, False, number + 1)
    assert cells.blocked(bad, FAILURES)
    assert cells.blocked(bad | good, FAILURES + BLOCKED)
    assert not cells.blocked(good, FAILURES)
    assert not cells.blocked(bad, FAILURES + BLOCKED + 1)


def test_a_success_clears_a_subspace():
    cells, cell = Cells(), {("dispatcher", "allgather")}
    cells.record(cell, True, 1)
    for turn in range(2, 2 + 2 * FAILURES):
        cells.record(cell, False, turn)
    assert not cells.blocked(cell, 2 + 2 * FAILURES)


def test_infrastructure_faults_block_nothing():
    task = small_task()
    tuner = FeasibleFirst(UniformDraws)(task)
    recipe = task.space.apply(task.baseline, {"dispatcher": "allgather"})
    for number in range(2 * FAILURES):
        tuner.tell(Proposal(recipe), ended(str(number), "node_failure"))
    assert not tuner.cells.blocked({("dispatcher", "allgather")}, 1)
