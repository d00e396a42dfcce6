"""Optuna's GP behind the tuner contract."""

from __future__ import annotations

import importlib.util

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.optuna_gp import OptunaGP
from tests.baselines.small_task import campaign, small_task


class TestContract(TunerContract):
    rounds = 6

    @pytest.fixture
    def factory(self):
        return OptunaGP

    @pytest.fixture
    def task(self):
        return small_task({"n_startup_trials": 4}, seed=3)


def test_it_asks_the_sampler_after_start_up():
    task = small_task({"n_startup_trials": 4}, seed=1)
    log = campaign(OptunaGP(task), task, runs=6)
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)
    assert any("GPSampler" in proposal.reason for proposal, _ in log[3:])


def test_without_torch_it_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs PyTorch"):
        OptunaGP(small_task())
