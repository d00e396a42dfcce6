"""What a tuner was told: best, worst, failures, and what needs no other run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import RunReport
from attune_lab.recipe import Recipe
from baselines.common.history import MAX_FAULTS, History


def recipe(number):
    return Recipe("megatron-lm", {"mbs": number})


def report(label, status="ok", seconds=1.0):
    times = (seconds,) * 8 if status == "ok" else ()
    return RunReport(label=label, status=status, provenance="simulated", steps=8, step_times_s=times)


def test_repeats_are_averaged_and_a_stored_answer_counts_once():
    history = History()
    for label, seconds in (("1", 1.0), ("2", 3.0), ("2", 3.0)):
        trial = history.record(recipe(1), report(label, seconds=seconds))
    assert trial.step_time_s == pytest.approx(2.0)
    assert len(trial.reports) == 2
    assert history.best is trial


@given(st.dictionaries(st.integers(1, 30), st.floats(0.1, 100.0), min_size=1))
def test_best_and_worst_are_the_extremes(times):
    history = History()
    for number, seconds in times.items():
        history.record(recipe(number), report(str(number), seconds=seconds))
    assert history.best_s == pytest.approx(min(times.values()))
    assert history.worst_s == pytest.approx(max(times.values()))
    assert history.best.step_time_s == history.best_s


def test_failures_are_known_and_counted_by_status():
    history = History()
    for number, status in enumerate(["oom", "oom", "crash", "ok", "node_failure"]):
        history.record(recipe(number), report(str(number), status))
    assert history.failures == {"oom": 2, "crash": 1}
    assert [history.known(recipe(number)) for number in range(6)] == [True, True, True, True, False, False]


def test_a_failure_after_a_good_run_leaves_the_recipe_feasible():
    history = History()
    history.record(recipe(1), report("1", seconds=2.0))
    trial = history.record(recipe(1), report("2", "crash"))
    assert (trial.status, trial.step_time_s, history.failures) == ("ok", pytest.approx(2.0), {})


def test_infrastructure_faults_say_nothing_and_end_the_patience():
    history = History()
    for number in range(MAX_FAULTS):
        assert not history.known(recipe(1))
        trial = history.record(recipe(1), report(str(number), "preempted"))
    assert history.known(recipe(1))
    assert (trial.status, trial.reports, history.best_s, history.worst_s) == ("", [], math.inf, None)
