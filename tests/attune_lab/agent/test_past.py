"""Past campaigns in the agent's expectations: weighed by precision, never louder than what was measured here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from agent_world import FakeWorld, campaign, make_task
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.agent import AttuneTuner
from attune_lab.agent.past import Past
from attune_lab.contracts import UserError
from attune_lab.lessons.evidence import Context, Effect


@dataclass(frozen=True)
class Told:
    """The same word of every lesson, or nothing."""

    told: Effect | None

    def effect(self, lesson, edits, context):
        return self.told


def past(told: Effect | None) -> Past:
    return Past(Told(told), Context("here"))


def test_without_observations_or_a_lesson_nothing_changes() -> None:
    assert past(None).weighed("L", {"tp": 2}, 0.05, 0.02) == (0.05, 0.02, 1.0)
    assert past(Effect(0.1, 0.1, 0.5, 3)).weighed(None, {"tp": 2}, 0.05, 0.02) == (0.05, 0.02, 1.0)


@given(
    gain=st.floats(-0.2, 0.2), sd=st.floats(1e-3, 0.2), surprise=st.floats(-0.2, 0.2), spread=st.floats(1e-3, 0.2),
    fails=st.floats(0, 1),
)  # fmt: skip
def test_model_and_past_are_combined_by_precision(gain, sd, surprise, spread, fails) -> None:
    mean, left, sound = past(Effect(surprise, spread, fails, 4)).weighed("L", {"tp": 2}, gain, sd)
    precision = 1 / sd**2 + 1 / spread**2
    assert mean == pytest.approx((gain / sd**2 + (gain + surprise) / spread**2) / precision, abs=1e-9)
    assert left == pytest.approx(math.sqrt(1 / precision), rel=1e-6)
    assert sound == 1 - fails


def test_a_lesson_that_failed_elsewhere_comes_later(monkeypatch) -> None:
    plain = AttuneTuner(make_task())
    campaign(plain, FakeWorld(100), runs=0)
    first = plain.ask()

    class Warned:
        def effect(self, lesson, edits, context):
            return Effect(0.0, 0.1, 0.95, 20) if lesson == first.lesson else None

    monkeypatch.setattr("attune_lab.agent.tuner._past", lambda task: Past(Warned(), Context("here")))
    warned = AttuneTuner(make_task())
    campaign(warned, FakeWorld(100), runs=0)
    assert warned.ask().lesson != first.lesson


def test_the_past_is_heard_in_reasons_and_counted_in_the_decisions(monkeypatch) -> None:
    assert past(None).words("L", {"tp": 2}, 0.08) == ""
    told = past(Effect(math.log(0.997 / 1.083), 0.1, 0.0, 4)).words("L", {"tp": 2}, math.log(1.083))
    assert told == "the model says +8.3%, 4 past tries -0.3%"

    monkeypatch.setattr("attune_lab.agent.tuner._past", lambda task: past(Effect(0.01, 0.1, 0.0, 1)))
    tuner = AttuneTuner(make_task())
    log = campaign(tuner, FakeWorld(100), runs=3)
    assert all("tokens/s expected (the model says " in proposal.reason for proposal, _ in log[:1])
    tried = len({proposal.recipe.digest for proposal, _ in log})
    assert f"past campaigns weighed in on {tried} of the {tried} recipes proposed" in tuner.decisions


def test_evidence_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError):
        AttuneTuner(make_task(options={"lessons": "no/such/file.json"}))
