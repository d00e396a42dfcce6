"""The adapter suggests what Optuna's own loop would, and tells what was asked for and what was not."""

from __future__ import annotations

import json
import sys

import optuna
import pytest

from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.outcomes import Outcome
from benchmarks.bench_adapters import PAIRS, main, optuna_adapter, optuna_loop
from benchmarks.closed_form import PROBLEMS

optuna.logging.set_verbosity(optuna.logging.ERROR)
CHOICES = {"size": (1, 2, 4), "kind": (None, "a", "b"), "on": (False, True)}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_same_suggestions_as_the_librarys_loop_on_closed_forms(problem, seed):
    def sampler():
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)

    assert optuna_adapter(problem, sampler(), 30) == optuna_loop(problem, sampler(), 30)


@pytest.mark.parametrize("encoding", ["categorical", "index"])
def test_points_have_the_parameters_values(encoding):
    sampler = OptunaSampler(CHOICES, optuna.samplers.RandomSampler(seed=0), encoding=encoding)
    for _ in range(20):
        point = sampler.ask()
        assert all(point[key] in values for key, values in CHOICES.items())
        assert point["on"] is True or point["on"] is False


@pytest.mark.parametrize("encoding", ["categorical", "index"])
def test_a_point_not_asked_for_becomes_a_trial_of_its_own(encoding):
    sampler = OptunaSampler(CHOICES, optuna.samplers.TPESampler(seed=0), encoding=encoding)
    sampler.tell({"size": 4, "kind": None, "on": True}, Outcome(2.0, {"memory": 0.3}))
    (trial,) = sampler.study.trials
    assert (trial.value, trial.constraints) == (2.0, {"memory": 0.3})
    assert trial.params == (
        {"size": 2, "kind": 0, "on": 1} if encoding == "index" else {"size": 4, "kind": None, "on": True}
    )


def test_a_suggestion_never_told_is_invisible_to_the_sampler():
    sampler = OptunaSampler(CHOICES, optuna.samplers.TPESampler(seed=0))
    sampler.ask()
    sampler.tell(sampler.ask(), Outcome(1.0))
    sampler.ask()
    assert [trial.state.name for trial in sampler.study.trials] == ["FAIL", "COMPLETE", "RUNNING"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [("by name", {"memory": -0.2, "failure": 0.25, "time": 0.25}), ("as one", {"limits": 0.25}), ("none", {})],
)
def test_limits_are_told_by_name_or_as_one_or_not_at_all(limits, told):
    sampler = OptunaSampler(CHOICES, optuna.samplers.TPESampler(seed=0), limits=limits)
    sampler.tell(sampler.ask(), Outcome(1.0, {"memory": -0.2, "failure": 0.25, "time": 0.25}))
    assert sampler.study.trials[0].constraints == told


def test_a_sampler_that_learns_from_its_own_trials_is_told_of_the_suggestion():
    sampler = OptunaSampler(CHOICES, optuna.samplers.NSGAIISampler(seed=0), own_trials=True)
    asked = sampler.ask()
    other = {**asked, "on": not asked["on"]}
    sampler.tell(other, Outcome(1.0))
    assert [trial.params for trial in sampler.study.trials] == [asked]


def test_the_benchmark_prints_its_table(monkeypatch, capsys):
    words = ["bench", "--json", "--evaluations", "9", "--seeds", "1", "--samplers", "optuna TPE"]
    monkeypatch.setattr(sys, "argv", words)
    main(PAIRS)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 5
    assert all(row["adapter"] == row["library"] for row in rows)
