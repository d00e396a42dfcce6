"""A Metropolis chain: its rule, its stationary distribution, and annealing on measured step times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.annealing import Annealing
from baselines.common.metropolis import accepts, random_move
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Annealing

    @pytest.fixture
    def task(self):
        return small_task(seed=4)


costs = st.floats(-10, 10) | st.just(math.inf)


@given(before=costs, after=costs, temperature=st.floats(0.01, 10), draw=st.floats(0, 1, exclude_max=True))
def test_the_rule_is_metropolis(before, after, temperature, draw):
    moved = accepts(before, after, temperature, draw)
    if after <= before:
        assert moved
    elif math.isinf(after):
        assert not moved
    else:
        assert moved == (draw < math.exp((before - after) / temperature))


def test_a_chain_on_a_small_table_has_the_boltzmann_distribution():
    table, temperature = np.array([0.0, 0.3, 0.1, math.inf, 0.6]), 0.25
    rng, here, visits = np.random.default_rng(0), 4, np.zeros(len(table))
    for _ in range(40_000):
        other = (here + rng.integers(1, len(table))) % len(table)
        if accepts(table[here], table[other], temperature, rng.random()):
            here = other
        visits[here] += 1
    expected = np.exp(-table / temperature)
    assert visits / visits.sum() == pytest.approx(expected / expected.sum(), abs=0.01)


def test_random_moves_change_one_parameter_and_are_legal():
    task, rng = small_task(), np.random.default_rng(1)
    found = [random_move(task, task.baseline, rng) for _ in range(200)]
    legal = [recipe for recipe in found if recipe is not None]
    assert len(legal) > 100
    assert not any(task.space.problems(recipe) for recipe in legal)
    first = {next(iter(task.space.changed(task.baseline, recipe))) for recipe in legal}
    assert len(first) > 15


def test_failures_are_left_and_faster_recipes_are_taken():
    task = small_task(seed=1)

    def answer(recipe):
        seconds = task.cost_model.estimate([recipe])[0].step_time_s
        return ("crash" if task.space.value(recipe, "tp") != 2 else "ok"), seconds

    log = campaign(Annealing(task), task, answer, runs=30)
    assert len({proposal.recipe.digest for proposal, _ in log}) == 30
    for proposal, report in log:
        if report.status == "ok":
            assert task.space.value(proposal.recipe, "tp") == 2
    base = task.cost_model.estimate([task.baseline])[0].step_time_s
    assert min(report.mean_step_time_s or math.inf for _, report in log) < base


def test_a_cold_chain_never_leaves_its_best():
    task = small_task({"temperature": "0.001"}, seed=2)
    best, here = math.inf, task.baseline
    for proposal, report in campaign(Annealing(task), task, runs=25):
        assert len(task.space.changed(here, proposal.recipe)) <= 4  # one parameter and what moves with it
        if report.mean_step_time_s is not None and report.mean_step_time_s < min(best, 1e9):
            best, here = report.mean_step_time_s, proposal.recipe


def test_the_temperature_is_checked():
    with pytest.raises(UserError, match="option temperature of the annealing tuner is 0; give a number"):
        Annealing(small_task({"temperature": 0}))
