"""scikit-optimize behind the tuner contract, and its adapter against the library's own loop."""

from __future__ import annotations

import builtins
import json
import sys

import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.common.outcomes import Outcome
from baselines.scikit_optimize import Settings, Skopt, SkoptSampler
from benchmarks.bench_skopt import PAIRS, main, skopt_adapter, skopt_loop
from benchmarks.closed_form import PROBLEMS
from tests.baselines.small_task import campaign, small_task

CHOICES = {"size": (1, 2, 4), "kind": (None, "a", "b"), "on": (False, True)}


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Skopt

    @pytest.fixture
    def task(self):
        return small_task(seed=3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("estimator", ["ET", "RF", "GP"])
def test_same_suggestions_as_the_librarys_loop_until_that_repeats_itself(problem, estimator):
    settings = Settings(estimator, startup=6, candidates=100, near=0, trees=10)
    adapter, library = (run(problem, settings, 1, 14) for run in (skopt_adapter, skopt_loop))
    apart = next((place for place, (a, b) in enumerate(zip(adapter, library, strict=True)) if a != b), len(library))
    assert apart >= 7
    told = [point for point, _, _ in library[:apart]]
    assert apart == len(library) or adapter[apart][0] not in told


@pytest.mark.parametrize("settings", [Settings("ET", "EIps"), Settings("GP"), Settings("ET", "gp_hedge")])
def test_points_are_legal_plain_values_and_new(settings):
    def legal(point):
        return point["on"] or point["size"] == 1

    sampler = SkoptSampler(CHOICES, settings, 0, ordered=lambda key: key != "kind", legal=legal)
    seen = []
    for number in range(11):
        point = sampler.ask()
        assert legal(point)
        json.dumps(point)
        seen.append(point)
        sampler.tell(point, Outcome(float(number % 3), {"memory": 0.2}, 60.0))
    assert all(point not in seen[:place] for place, point in enumerate(seen) if place >= 8)


def test_proposals_are_legal_and_never_repeated():
    task = small_task(seed=1)
    log = campaign(Skopt(task), task, runs=16)
    assert len({task.baseline.digest, *(proposal.recipe.digest for proposal, _ in log)}) == 17
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)
    assert "scikit-optimize (ET)" in log[-1][0].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "GBRT"}, "GBRT of scikit-optimize"),
        ({"estimator": "SVM"}, "one of ET"),
        ({"x": 1}, "no option x"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Skopt(small_task(options))


def test_a_broken_library_is_one_sentence(monkeypatch):
    real = builtins.__import__

    def broken(name, *rest):
        if name.startswith("skopt"):
            raise AttributeError("module 'numpy' has no attribute 'int'")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("skopt")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(UserError, match=r"scikit-optimize does not import \(AttributeError"):
        SkoptSampler(CHOICES, Settings(), 0)


def test_the_benchmark_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["bench", "--json", "--evaluations", "9", "--seeds", "1", "--samplers", "skopt ET"]
    )
    main(PAIRS)
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 5
