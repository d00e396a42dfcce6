"""Rubick: the formula finds the coefficients that made the data, and the tuner finds what a biased model hides."""

from __future__ import annotations

import numpy as np
import pytest

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.common.pricelist import explore
from baselines.rubick import PARTS, FormulaModel, Rubick, _terms
from tests.baselines.small_task import as_predicted, campaign, ended, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return Rubick

    @pytest.fixture
    def task(self):
        return small_task()


def points(count=12):
    found = list(explore(small_task()))
    return found[:: len(found) // count][:count]


def made_report(profile):
    """A run with these seconds for each of the formula's parts."""
    breakdown = {name: 0.0 for parts in PARTS.values() for name in parts}
    breakdown |= {parts[0]: float(s) for parts, s in zip(PARTS.values(), profile, strict=True)}
    return ended("run", "ok", seconds=float(sum(profile))).model_copy(update={"breakdown_s": breakdown})


def test_the_coefficients_that_made_the_data_are_found() -> None:
    seen, task = points(), small_task()
    sequences = int(task.baseline.get("gbs"))
    truth = FormulaModel(task.cluster.n_gpus, sequences)
    truth._log = np.log([1.2, 0.8, 1.3, 1.0, 1.1, 0.9, 1.2, 1.0])
    profiles = _terms(truth._features(seen), truth._log).T
    fitted = FormulaModel(task.cluster.n_gpus, sequences)
    fitted.fit(seen, [made_report(profile) for profile in profiles])
    assert fitted.seconds(seen) == pytest.approx(truth.seconds(seen), rel=0.02)
    assert fitted.coefficients["computation"] == pytest.approx(1.2, rel=0.05)


def test_before_any_run_every_coefficient_is_one() -> None:
    assert set(FormulaModel(8, 64).coefficients.values()) == {1.0}


def test_runs_without_a_profile_are_enough() -> None:
    seen, task = points(6), small_task()
    model = FormulaModel(task.cluster.n_gpus, int(task.baseline.get("gbs")))
    before = model.seconds(seen)
    model.fit(seen, [ended("run", "ok", seconds=1.3 * s) for s in before])
    assert model.seconds(seen) == pytest.approx(1.3 * before, rel=0.05)


def test_it_beats_the_cost_model_where_that_is_wrong() -> None:
    """Tensor-parallel layouts are slower in truth than predicted: it turns to others."""
    task = small_task()
    right = as_predicted(task)

    def truth(recipe):
        status, seconds, peak = right(recipe)
        return status, seconds * (1.5 if task.space.value(recipe, "tp") > 1 else 1.0), peak

    log = campaign(Rubick(task), task, truth, runs=12)
    best = min(report.mean_step_time_s for _, report in log if report.status == "ok")
    reachable = [
        one.estimate.step_time_s * (1.5 if one.size("tp") > 1 else 1.0) for one in explore(task) if one.fill <= 1.0
    ]
    assert best <= min(reachable) * 1.03


def test_no_recipe_is_run_twice_unless_it_says_so() -> None:
    task = small_task()
    log = campaign(Rubick(task), task, runs=20)
    fresh = [proposal.recipe.digest for proposal, _ in log if not proposal.remeasure]
    assert len(fresh) == len(set(fresh))
    assert all(not task.space.problems(proposal.recipe) for proposal, _ in log)


def test_options_are_refused() -> None:
    with pytest.raises(UserError, match="rubick"):
        Rubick(small_task({"speed": 1}))
