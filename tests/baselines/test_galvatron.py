"""Galvatron: the recurrence against trying every assignment, and the tuner on small truths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.galvatron import Galvatron, plan_layers
from tests.baselines.small_task import campaign, hungrier, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Galvatron

    @pytest.fixture
    def task(self):
        return small_task()


def cost_of(plan, seconds, switch):
    work = sum(seconds[layer, s] for layer, s in enumerate(plan))
    return work + sum(switch[a, b] for a, b in itertools.pairwise(plan))


@st.composite
def problems(draw):
    layers, strategies = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    room = draw(st.integers(0, 12))

    def table(rows, columns, values):
        row = st.lists(values, min_size=columns, max_size=columns)
        return np.array(draw(st.lists(row, min_size=rows, max_size=rows)))

    times = st.floats(0.0, 10.0)
    return (
        table(layers, strategies, times),
        table(layers, strategies, st.integers(0, 6)),
        room,
        table(strategies, strategies, times),
    )


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_recurrence_finds_what_trying_everything_finds(problem) -> None:
    seconds, memory, room, switch = problem
    layers, strategies = seconds.shape
    costs = [
        cost_of(plan, seconds, switch)
        for plan in itertools.product(range(strategies), repeat=layers)
        if sum(memory[layer, s] for layer, s in enumerate(plan)) <= room
    ]
    best, plan = plan_layers(seconds, memory, room, switch)
    assert best == pytest.approx(min(costs, default=math.inf))
    if costs:
        assert len(plan) == layers
        assert sum(memory[layer, s] for layer, s in enumerate(plan)) <= room
        assert cost_of(plan, seconds, switch) == pytest.approx(best)
    else:
        assert plan == []


def test_less_room_buys_leaner_layers_one_at_a_time() -> None:
    seconds, memory = np.tile([1.0, 2.0], (4, 1)), np.tile([3, 1], (4, 1))
    plans = [plan_layers(seconds, memory, room, np.zeros((2, 2)))[1] for room in (12, 10, 8, 4, 3)]
    assert [plan.count(0) for plan in plans] == [4, 3, 2, 0, 0]
    assert plans[-1] == []


def test_plans_fit_and_the_fastest_is_among_them() -> None:
    task = small_task()
    tuner = Galvatron(task)
    plans = list(tuner.plans())
    fitting = [one for one in tuner.knowledge.prices if one.fill <= 0.95]
    fastest = min(one.estimate.step_time_s for one in fitting)
    assert min(one.estimate.step_time_s for one in plans if one.fill <= 1.0) <= fastest * 1.01


def test_running_out_of_memory_makes_the_next_plans_leaner() -> None:
    task = small_task()
    truth = hungrier(task)
    log = campaign(Galvatron(task), task, truth, runs=15)
    assert sum(report.status == "oom" for _, report in log) <= 5
    assert min(r.mean_step_time_s for _, r in log if r.status == "ok") < truth(task.baseline)[1]


def test_the_budget_is_used_on_new_legal_recipes() -> None:
    task = small_task()
    log = campaign(Galvatron(task), task, runs=25)
    assert len(log) == 25
    assert len({proposal.recipe.digest for proposal, _ in log}) == 25
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)


def test_options_are_refused() -> None:
    with pytest.raises(UserError, match="galvatron"):
        Galvatron(small_task({"top": 3}))
