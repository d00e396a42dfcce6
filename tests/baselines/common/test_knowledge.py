"""What planners learn from reports: times, memory, refusals; and what they do not hold against a recipe."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.common.knowledge import Knowledge
from baselines.common.pricelist import PriceList
from tests.baselines.small_task import ended, small_task


@pytest.fixture
def knowledge():
    task = small_task()
    prices = PriceList(task.space, task.cost_model)
    (base,) = prices.price([task.baseline])
    prices.neighbours(base)
    return Knowledge(task, prices)


def told(knowledge, one, status, *, slower=1.0, larger=1.0, message=""):
    estimate = one.estimate
    report = ended(one.recipe.digest, status, slower * estimate.step_time_s, larger * estimate.peak_memory_bytes)
    knowledge.tell(one.recipe, report.model_copy(update={"message": message}))


def test_a_bias_that_all_share_is_taken_out(knowledge) -> None:
    first, second, *others = knowledge.prices
    for one in (first, second):
        told(knowledge, one, "ok", slower=1.3)
    seconds, _ = knowledge.seconds(others)
    assert np.median(seconds / [one.estimate.step_time_s for one in others]) == pytest.approx(1.3, rel=0.03)


def test_measured_peaks_correct_what_is_expected_to_fit(knowledge) -> None:
    first, *others = knowledge.prices
    before = knowledge.fits(others)
    told(knowledge, first, "ok", larger=1.2)
    assert (knowledge.filled(others) > [1.1 * one.fill for one in others]).all()
    assert (knowledge.fits(others) <= before + 1e-12).all()


def test_every_recipe_that_runs_out_of_memory_makes_the_others_less_likely_to_fit(knowledge) -> None:
    fullest = sorted(knowledge.prices, key=lambda one: -one.fill)
    chances = []
    for one in fullest[:3]:
        told(knowledge, one, "oom")
        chances.append(knowledge.fits(fullest[3:]).mean())
    assert chances == sorted(chances, reverse=True)


def test_what_the_infrastructure_did_is_not_held_against_a_recipe(knowledge) -> None:
    first, *others = knowledge.prices
    before = knowledge.runs(others)
    told(knowledge, first, "node_failure")
    assert knowledge.runs(others).tolist() == before.tolist()
    assert knowledge.first_open([first]) is first


def test_a_refusal_makes_recipes_that_are_alike_doubtful(knowledge) -> None:
    base, *others = knowledge.prices
    told(knowledge, base, "ok")
    refused = next(one for one in others if one.values["ep_overlap"] != base.values["ep_overlap"])
    told(knowledge, refused, "invalid", message="not with this overlap")
    alike, unlike = refused, next(one for one in others if one.kind != base.kind)
    assert knowledge.sound([alike])[0] < 0.1 < knowledge.sound([unlike])[0]
    assert knowledge.first_open([refused]) is None


def test_hope_is_nought_for_nothing_and_needs_no_measurement(knowledge) -> None:
    assert knowledge.hope([]).tolist() == []
    assert (knowledge.hope(list(knowledge.prices)) >= 0.0).all()
