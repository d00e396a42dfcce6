"""Mist: the programme against trying every combination, the front against its definition, the tuner on small truths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.mist import SPLIT, Mist, Stages, front, plan_stages
from tests.baselines.small_task import campaign, hungrier, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Mist

    @pytest.fixture
    def task(self):
        return small_task()


def step_s(stages, plan, micro_batches):
    times = [stages.repeated_s[p, c] for p, c in enumerate(plan)]
    once = [stages.once_s[p, c] for p, c in enumerate(plan)]
    return (micro_batches - 1) * max(times) + sum(times) + max(once)


@st.composite
def pipelines(draw):
    count, choices = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def table(values):
        row = st.lists(values, min_size=choices, max_size=choices)
        return np.array(draw(st.lists(row, min_size=count, max_size=count)))

    seconds = st.floats(0.1, 10.0)
    stages = Stages(table(seconds), table(seconds), table(st.floats(0.1, 2.0)))
    return stages, draw(st.integers(1, 32))


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_the_programme_finds_what_trying_everything_finds(problem) -> None:
    stages, micro_batches = problem
    count, choices = stages.repeated_s.shape
    every = itertools.product(range(choices), repeat=count)
    fitting = [plan for plan in every if all(stages.memory[p, c] <= 1.0 for p, c in enumerate(plan))]
    best = min((step_s(stages, plan, micro_batches) for plan in fitting), default=math.inf)
    seconds, plan = plan_stages(stages, micro_batches, 1.0)
    assert seconds == pytest.approx(best, rel=1e-5)
    if fitting:
        assert tuple(plan) in fitting
        assert step_s(stages, plan, micro_batches) == pytest.approx(best, rel=1e-5)
    else:
        assert plan == []


def test_a_fast_stage_waits_for_the_slowest_so_it_saves_what_it_can_for_free() -> None:
    """One stage has no room for the fast choice; the others keep it, for the sum of times counts too."""
    stages = Stages(np.tile([1.0, 2.0], (3, 1)), np.zeros((3, 2)), np.array([[1.5, 0.5], [0.9, 0.3], [0.9, 0.3]]))
    seconds, plan = plan_stages(stages, 4, 1.0)
    assert plan == [1, 0, 0]
    assert seconds == pytest.approx(3 * 2.0 + 4.0)


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@given(points)
def test_the_front_is_what_no_other_betters(found) -> None:
    seconds, memory = (np.array(column, dtype=float) for column in zip(*found, strict=True))
    kept = front(seconds, memory)
    on_front = {(s, m) for s, m in found if not any((a <= s and b < m) or (a < s and b <= m) for a, b in found)}
    assert {found[place] for place in kept} == on_front
    assert seconds[kept].tolist() == sorted(seconds[kept])


def test_plans_of_a_layout_agree_in_it_and_fit() -> None:
    tuner = Mist(small_task())
    plans = list(tuner.plans())
    assert plans
    assert all(one.fill <= 0.95 for one in plans)
    assert len({tuple(one.values.get(key) for key in SPLIT) for one in plans}) > 1


def test_running_out_of_memory_makes_the_next_plans_leaner() -> None:
    task = small_task()
    truth = hungrier(task)
    log = campaign(Mist(task), task, truth, runs=15)
    assert sum(report.status == "oom" for _, report in log) <= 5
    assert min(r.mean_step_time_s for _, r in log if r.status == "ok") < truth(task.baseline)[1]


def test_the_budget_is_used_on_new_legal_recipes() -> None:
    task = small_task()
    log = campaign(Mist(task), task, runs=25)
    assert len({proposal.recipe.digest for proposal, _ in log}) == len(log) == 25
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)


def test_options_are_refused() -> None:
    with pytest.raises(UserError, match="mist"):
        Mist(small_task({"gap": 0.1}))
