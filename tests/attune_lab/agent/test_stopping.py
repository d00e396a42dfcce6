"""The stop rule: what is worth a run, and the sentence that says why nothing is."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from agent_world import BASELINE, FakeBudget, FakeCostModel, FakeWorld, campaign, make_task
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.agent import AttuneTuner
from attune_lab.agent.policy import Candidate
from attune_lab.agent.stopping import NOTHING_LEFT, REAL_CHANCE, StopRule

ESTIMATE = FakeCostModel().estimate([BASELINE])[0]


def candidate(gain: float, sd: float, fit_chance: float = 1.0) -> Candidate:
    return Candidate(BASELINE, {}, "", None, ESTIMATE, gain=gain, sd=sd, fit_chance=fit_chance)


def rule(*, band: float = 0.01, reliability: float = 1.0, left: float = 10.0, cost: float = 1.0) -> StopRule:
    return StopRule(band, reliability, left, lambda _: cost)


@given(gain=st.floats(-0.2, 0.2), sd=st.floats(0.005, 0.2), fit=st.floats(0, 1), runs=st.floats(0.1, 1))
def test_the_chance_is_the_share_of_draws_beyond_the_band(gain: float, sd: float, fit: float, runs: float) -> None:
    draws = np.random.default_rng(0).normal(gain, sd, 20_000)
    drawn = float(np.mean(np.expm1(draws) > 0.01)) * fit * runs
    assert rule(reliability=runs).chance(candidate(gain, sd, fit)) == pytest.approx(drawn, abs=0.02)


def test_a_certain_gain_counts_only_beyond_the_band() -> None:
    assert rule().chance(candidate(math.log(1.011), 0.0)) == 1.0
    assert rule().chance(candidate(math.log(1.009), 0.0)) == 0.0


def test_a_lever_the_model_thinks_neutral_is_worth_a_run_while_its_effect_is_uncertain() -> None:
    uncertain, known = candidate(0.0, 0.035), candidate(0.0, 0.003)
    assert rule().worthwhile([known, uncertain]) == [uncertain]
    assert rule().chance(known) < REAL_CHANCE


def test_reasons_to_stop() -> None:
    assert rule().reason([]) == NOTHING_LEFT
    broke = rule(left=0.5).reason([candidate(0.1, 0.01)])
    assert broke == "the next run costs 1 GPU-hours and 0.5 are left for the search"
    said = rule(band=0.016).reason([candidate(math.log(1.003), 0.003), candidate(-0.2, 0.005)])
    assert said.startswith("the best of 2 moves left promises +0.3% and has a chance of ")
    assert said.endswith("% to gain more than the noise band of 1.6%")


def test_the_tuner_says_why_it_stops() -> None:
    tuner = AttuneTuner(make_task())
    campaign(tuner, FakeWorld(7), runs=0)
    assert tuner.ask() is not None
    assert tuner.stop_reason == ""
    campaign(tuner, FakeWorld(7), runs=200, start=0)
    assert tuner.ask() is None
    assert re.fullmatch(r"the best of \d+ moves left promises .* the noise band of \d\.\d%", tuner.stop_reason)


def test_the_tuner_says_when_money_is_what_it_lacks() -> None:
    tuner = AttuneTuner(make_task(budget=FakeBudget(left_for_search=0.1)))
    assert campaign(tuner, FakeWorld(7)) == []
    assert tuner.stop_reason.endswith("GPU-hours and 0.1 are left for the search")


@pytest.mark.parametrize("off", [[], ["stop-when-not-worth-it"]])
def test_an_exhausted_space_is_a_reason(off: list[str]) -> None:
    tuner = AttuneTuner(make_task(options={"without": ["use-catalog", *off]}))
    campaign(tuner, FakeWorld(7), runs=0)
    tuner._policy = type("Nothing", (), {"rank": lambda self, situation: []})()
    assert tuner.ask() is None
    assert tuner.stop_reason == NOTHING_LEFT
