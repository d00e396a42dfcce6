"""AutoScout: the ensemble trusts who ranks well, the bandit leaves bad structures, the switches are learnt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from attune_lab.contracts import UserError
from attune_lab.testing import TunerContract
from baselines.autoscout import MEMBERS, AutoScout, Ensemble, log_density_ratios, rank_correlation
from baselines.common.pricelist import explore
from tests.baselines.small_task import as_predicted, campaign, small_task


class TestContract(TunerContract):
    @pytest.fixture
    def factory(self):
        return AutoScout

    @pytest.fixture
    def task(self):
        return small_task()


numbers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=12)


@given(numbers)
def test_the_rank_correlation_is_spearmans(pairs) -> None:
    a, b = zip(*pairs, strict=True)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    else:
        assert rank_correlation(a, b) == 0.0


def some(count):
    found = explore(small_task()).good
    return found[:: len(found) // count][:count]


@pytest.mark.parametrize("member", range(len(MEMBERS)))
def test_the_member_that_ranks_as_the_truth_does_gets_the_most_weight(member) -> None:
    ensemble, points = Ensemble(small_task()), some(12)
    views = ensemble._views(points)[:, member]
    ensemble.fit([(one, 7.0 * math.exp(view)) for one, view in zip(points, views, strict=True)])
    assert ensemble.weights[member] == pytest.approx(ensemble.weights.max())
    assert ensemble.weights.sum() == pytest.approx(1.0)


def test_a_constant_error_of_the_cost_model_is_taken_out() -> None:
    ensemble, points = Ensemble(small_task()), some(12)
    ensemble.fit([(one, 1.4 * one.estimate.step_time_s) for one in points])
    errors = ensemble.predict(points) - np.log([1.4 * one.estimate.step_time_s for one in points])
    assert abs(np.median(errors)) < 0.05


@given(st.lists(st.booleans(), min_size=1), st.lists(st.booleans(), min_size=1))
def test_a_value_is_favoured_exactly_when_it_is_more_frequent_among_the_better(better, worse) -> None:
    ratio = log_density_ratios(better, worse)
    choices = len({*better, *worse})
    share_of = [(1 + side.count(True)) / (choices + len(side)) for side in (better, worse)]
    assert math.copysign(1.0, ratio(True)) == math.copysign(1.0, math.log(share_of[0] / share_of[1]))


def test_a_structure_that_disappoints_is_left() -> None:
    """In truth a step takes half as long again without recomputation: the bandit goes elsewhere."""
    task = small_task()
    right = as_predicted(task)

    def truth(recipe):
        status, seconds, peak = right(recipe)
        return status, seconds * (1.5 if task.space.value(recipe, "recompute") == "none" else 1.0), peak

    log = campaign(AutoScout(task), task, truth, runs=20)
    late = [task.space.value(proposal.recipe, "recompute") for proposal, _ in log[10:]]
    assert late.count("none") <= len(late) // 2
    best = min(report.mean_step_time_s for _, report in log if report.status == "ok")
    assert best < truth(task.baseline)[1]


def test_the_budget_is_used_on_new_legal_recipes() -> None:
    task = small_task()
    log = campaign(AutoScout(task), task, runs=25)
    assert len({proposal.recipe.digest for proposal, _ in log}) == len(log) == 25
    assert not any(task.space.problems(proposal.recipe) for proposal, _ in log)


def test_options_are_refused() -> None:
    with pytest.raises(UserError, match="autoscout"):
        AutoScout(small_task({"arms": 3}))
