"""Greedy climbing: the best expected neighbour first, kept or reverted by what is measured."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.common.moves import moves
from baselines.greedy import Greedy
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Greedy

    @pytest.fixture
    def task(self):
        return small_task()


def test_the_first_step_is_the_best_neighbour_by_brute_force():
    task = small_task()
    (proposal, _), *_ = campaign(Greedy(task), task, runs=1)
    around = [move.recipe for move in moves(task, task.baseline)]
    estimates = task.cost_model.estimate(around)
    assert proposal.predicted["step_time_s"] == min(one.step_time_s for one in estimates if one.fits)


def test_where_the_model_is_right_every_step_climbs_until_a_local_optimum():
    task = small_task()
    times = [report.mean_step_time_s for _, report in campaign(Greedy(task), task, runs=12)]
    climb = times[: times.index(min(times)) + 1]
    assert climb == sorted(climb, reverse=True)
    assert len(climb) > 5


def test_what_does_not_pay_is_reverted_and_tried_again_last():
    task = small_task()
    bad = "flex:hybridep"

    def answer(recipe):
        base = task.cost_model.estimate([recipe])[0].step_time_s
        return ("crash" if task.space.value(recipe, "dispatcher") == bad else "ok"), base

    log = campaign(Greedy(task), task, answer, runs=15)
    assert sum(report.status == "crash" for _, report in log) <= 1
    settled = [task.space.value(proposal.recipe, "dispatcher") for proposal, report in log if report.status == "ok"]
    assert bad not in settled


def test_it_stops_when_nothing_is_expected_to_fit():
    task = small_task(seq_len=131072, mbs=8)
    tuner = Greedy(task)
    assert campaign(tuner, task, lambda recipe: ("oom", 1.0)) == []
    assert "not expected to fit" in tuner.stop_reason


def test_it_takes_no_options():
    with pytest.raises(UserError, match="the greedy tuner has no option k"):
        Greedy(small_task({"k": 1}))
