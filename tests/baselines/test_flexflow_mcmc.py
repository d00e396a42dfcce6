"""Chains on the cost model, whose best states are run."""

from __future__ import annotations

import pytest

from attune_lab.testing import TunerContract
from baselines.flexflow_mcmc import FlexFlowMCMC
from tests.baselines.small_task import campaign, small_task

SHORT = {"chains": 4, "steps": 15}


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return FlexFlowMCMC

    @pytest.fixture
    def task(self):
        return small_task(SHORT, seed=5)


def test_states_are_run_from_the_fastest_on_and_those_the_model_can_tell_apart_first():
    task = small_task(SHORT)
    log = campaign(FlexFlowMCMC(task), task, runs=20)
    figures = [tuple(proposal.predicted.values()) for proposal, _ in log]
    distinct = list(dict.fromkeys(figures))
    assert figures[: len(distinct)] == distinct
    assert [step for step, _ in distinct] == sorted(step for step, _ in distinct)
    assert all(report.status == "ok" for _, report in log)


def test_longer_chains_find_better_states():
    def best(steps):
        task = small_task({"chains": 4, "steps": steps}, seed=0)
        return campaign(FlexFlowMCMC(task), task, runs=1)[0][0].predicted["step_time_s"]

    assert best(80) < best(5)


def test_memory_is_judged_anew_after_each_run():
    task = small_task({**SHORT, "margin": 0.0})

    def crowded(recipe):
        estimate = task.cost_model.estimate([recipe])[0]
        peak = 1.5 * estimate.peak_memory_bytes
        return ("ok" if peak <= estimate.memory_capacity_bytes else "oom"), estimate.step_time_s, peak

    log = campaign(FlexFlowMCMC(task), task, crowded, runs=10)
    assert log
    assert all(report.status == "ok" for _, report in log)


def test_the_chains_end():
    task = small_task({"chains": 2, "steps": 2})
    tuner = FlexFlowMCMC(task)
    campaign(tuner, task, runs=30)
    assert tuner.stop_reason == "every state of the chains that is expected to fit has been run"
