"""Sailor: the programme against trying every split, its pruning, what the objective changes, and small truths."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.sailor import Sailor, StageOption, plan_pipeline, smallest_fitting
from tests.baselines.small_task import SmallBudget, campaign, hungrier, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Sailor

    @pytest.fixture
    def task(self):
        return small_task()


class TestContractUnderCost(TestContract):
    @pytest.fixture
    def task(self):
        return small_task({"objective": "cost"})


options = st.lists(
    st.builds(
        StageOption,
        seconds=st.floats(0.1, 5.0),
        fixed=st.floats(0.0, 0.5),
        per_layer=st.floats(0.0, 0.4),
        size=st.sampled_from([1, 2, 4]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(options, st.integers(1, 4), st.integers(0, 5), st.integers(1, 16), st.integers(0, 2))
def test_the_programme_finds_what_trying_every_split_finds(found, stages, more, micro_batches, slack) -> None:
    layers = stages + more
    best = math.inf
    for split in itertools.product(range(1, layers + 1), repeat=stages):
        taken = [smallest_fitting(found, n, 1.0) for n in split]
        if sum(split) == layers and all(taken) and _within(split, layers / stages, slack):
            times = [n * option.seconds for n, option in zip(split, taken, strict=True)]
            best = min(best, (micro_batches - 1) * max(times) + sum(times))
    seconds, plan = plan_pipeline(
        found, layers=layers, stages=stages, micro_batches=micro_batches, room=1.0, slack=slack
    )
    assert seconds == pytest.approx(best)
    assert (sum(n for n, _ in plan), len(plan)) == ((layers, stages) if plan else (0, 0))


def _within(split, share, slack):
    return all(math.ceil(share) - slack <= n <= math.floor(share) + slack for n in split)


def test_memory_decides_the_tensor_parallelism() -> None:
    small, large = StageOption(1.0, 0.1, 0.3, 1), StageOption(0.9, 0.1, 0.1, 2)
    assert smallest_fitting([large, small], 3, 1.0) is small
    assert smallest_fitting([large, small], 4, 1.0) is large
    assert smallest_fitting([large, small], 10, 1.0) is None


def test_uneven_layers_leave_the_slowest_stage_as_short_as_can_be() -> None:
    option = StageOption(1.0, 0.0, 0.0, 1)
    seconds, plan = plan_pipeline([option], layers=5, stages=2, micro_batches=3, room=1.0, slack=1)
    assert sorted(n for n, _ in plan) == [2, 3]
    assert seconds == pytest.approx(2 * 3 + 5)


def test_both_objectives_propose_alike_and_cost_ends_sooner() -> None:
    logs, tuners = {}, {}
    for objective in ("throughput", "cost"):
        task = replace(small_task({"objective": objective}), budget=SmallBudget(run_cost=20.0))
        tuners[objective] = Sailor(task)
        logs[objective] = campaign(tuners[objective], task, runs=40)
    long, short = ([proposal.recipe.digest for proposal, _ in logs[name]] for name in ("throughput", "cost"))
    assert short == long[: len(short)]
    assert 0 < len(short) < len(long)
    assert "costs" in tuners["cost"].stop_reason


def test_running_out_of_memory_makes_the_next_plans_leaner() -> None:
    task = small_task()
    truth = hungrier(task)
    log = campaign(Sailor(task), task, truth, runs=15)
    assert sum(report.status == "oom" for _, report in log) <= 5
    assert min(r.mean_step_time_s for _, r in log if r.status == "ok") < truth(task.baseline)[1]


def test_bad_options_are_refused() -> None:
    with pytest.raises(UserError, match="objective"):
        Sailor(small_task({"objective": "speed"}))
    with pytest.raises(UserError, match="sailor"):
        Sailor(small_task({"goal": "cost"}))
