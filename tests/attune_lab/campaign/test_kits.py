"""The scripted parts pass the kits they are shipped with."""

from __future__ import annotations

import pytest
from scripted import BASELINE

from attune_lab.contracts import Tuner, TuningTask
from attune_lab.testing import (
    ClusterContract,
    FakeCluster,
    FakeCostModel,
    FakeSpace,
    Outcome,
    ScriptedTuner,
    TunerContract,
    fake_cluster_spec,
)


class TestFakeCluster(ClusterContract):
    @pytest.fixture
    def cluster(self):
        return FakeCluster(lambda recipe, steps, label: Outcome())

    @pytest.fixture
    def recipe(self):
        return BASELINE


class TestScriptedTuner(TunerContract):
    @pytest.fixture
    def factory(self):
        return lambda task: ScriptedTuner(task.baseline, [{"tp": 2}, {"tp": 1}, {"mbs": None}])

    @pytest.fixture
    def task(self):
        return TuningTask(BASELINE, fake_cluster_spec(), FakeSpace(), FakeCostModel(), None, 0)


def test_a_scripted_tuner_is_a_tuner() -> None:
    assert isinstance(ScriptedTuner(BASELINE, []), Tuner)
