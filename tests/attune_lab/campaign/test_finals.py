"""Which trials are run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attune_lab.testing import FakeCluster, FakeGate, FakeVerdict, Outcome, ScriptedTuner

sys.path.insert(0, str(Path(__file__).parent))
from scripted import campaign


def test_what_a_search_run_shows_already_is_spared_its_final_run(tmp_path):
    class Sharp(FakeGate):
        def judge(self, baseline, candidate, *, candidate_run, **runs):
            if candidate_run.steps == 8 and candidate.settings["tp"] == 2:
                return FakeVerdict("reject", ("Gradients are doubled.",))
            return super().judge(baseline, candidate, candidate_run=candidate_run, **runs)

    def script(recipe, steps, label):
        return Outcome(step_time_s={2: 0.5, 1: 0.8}.get(recipe.settings["tp"], 1.0))

    result = campaign(tmp_path, edits=[{"tp": 2}, {"tp": 1}], script=script, gate=Sharp())
    assert [run["changed"] for run in result.runs if run["purpose"] == "finalist"] == [{"tp": [4, 1]}]
    assert (result.shipped["tp"], result.gain_pct) == (1, pytest.approx(25))
    assert ("003-search", "gate says reject: Gradients are doubled.") in {
        (lost["label"], lost["reason"]) for lost in result.lost
    }


def test_what_a_run_shows_is_said_of_a_trial_that_was_passed_over(tmp_path):
    class Sharp(FakeGate):
        def judge(self, baseline, candidate, *, candidate_run, **runs):
            if candidate.settings["tp"] == 1:
                return FakeVerdict("reject", ("Gradients are doubled.",))
            return super().judge(baseline, candidate, candidate_run=candidate_run, **runs)

    result = campaign(tmp_path, edits=[{"tp": 2}, {"tp": 1}, {"tp": 8}], script=by_tp, gate=Sharp())
    assert result.shipped["tp"] == 2
    seen = "gate says reject: Gradients are doubled."
    assert {lost["label"]: lost["reason"] for lost in result.lost} == {
        "004-search": f"the shipped recipe was faster in the search (+25.0% here); {seen}",
        "005-search": "slower than the baseline (-33.3%)",
    }


def chooses(choice):
    """A tuner that runs three layouts and then chooses one of them, given as its tp."""

    def factory(task):
        tuner = ScriptedTuner(task.baseline, [{"tp": 2}, {"tp": 1}, {"tp": 8}])
        tuner.choice = task.baseline if choice is None else task.baseline.with_settings({"tp": choice})
        return tuner

    return factory


def by_tp(recipe, steps, label):
    return Outcome(step_time_s={2: 0.5, 1: 0.8, 8: 1.5}.get(recipe.settings["tp"], 1.0))


def test_the_choice_of_a_tuner_goes_before_faster_trials(tmp_path):
    result = campaign(tmp_path, script=by_tp, tuner_factory=chooses(1))
    assert (result.shipped["tp"], result.gain_pct) == (1, pytest.approx(25))
    reasons = {lost["label"]: lost["reason"] for lost in result.lost}
    assert reasons["003-search"] == "the shipped recipe is the tuner's choice (+100.0% here)"


def test_a_tuner_may_keep_the_baseline(tmp_path):
    result = campaign(tmp_path, script=by_tp, tuner_factory=chooses(None))
    assert result.kept_baseline
    assert not [run for run in result.runs if run["purpose"] == "finalist"]
    assert "the tuner chose to keep the baseline" in result.lost[0]["reason"]


@pytest.mark.parametrize("choice", [8, 4096])
def test_a_choice_that_gains_nothing_or_never_ran_leaves_the_finals_as_they_are(tmp_path, choice):
    result = campaign(tmp_path, script=by_tp, tuner_factory=chooses(choice))
    assert (result.shipped["tp"], result.gain_pct) == (2, pytest.approx(100))


def test_a_choice_is_judged_like_any_other_trial(tmp_path):
    class Strict(FakeGate):
        def judge(self, baseline, candidate, **runs):
            if candidate.settings["tp"] == 1:
                return FakeVerdict("reject", ("Gradients are doubled.",))
            return super().judge(baseline, candidate, **runs)

    result = campaign(tmp_path, script=by_tp, tuner_factory=chooses(1), gate=Strict())
    assert result.shipped["tp"] == 2


def test_a_choice_holds_after_a_kill(tmp_path):
    class Dying(FakeCluster):
        def run(self, recipe, steps, *, label, **limits):
            if label.startswith("finalist"):
                raise KeyboardInterrupt
            return super().run(recipe, steps, label=label, **limits)

    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, cluster=Dying(by_tp), tuner_factory=chooses(1))
    result = campaign(tmp_path, script=by_tp, tuner_factory=chooses(2))  # the search had ended: nobody is asked again
    assert result.shipped["tp"] == 1
