"""Recipes like those refused are suspect, until one like them runs."""

from __future__ import annotations

import pytest

from baselines.common.history import History
from baselines.common.refusals import Refusals
from tests.baselines.small_task import ended, small_task

LEAK = "the gate would reject it: a leak"


@pytest.fixture
def bench():
    task, history = small_task(), History()
    history.record(task.baseline, ended("0", "ok"))

    def tell(status, message="", **edits):
        recipe = task.space.apply(task.baseline, edits)
        report = ended(str(len(history)), status).model_copy(update={"message": message})
        history.record(recipe, report)

    def suspect(**edits):
        return Refusals(task, history).expects(task.space.apply(task.baseline, edits))

    return tell, suspect


def test_one_refusal_is_no_pattern(bench):
    tell, suspect = bench
    tell("invalid", LEAK, etp=2, mbs=2)
    assert not suspect(etp=2, mbs=4)


def test_what_has_all_that_the_refused_share_is_suspect_whatever_the_size(bench):
    tell, suspect = bench
    tell("invalid", LEAK, etp=2, ep=4)
    tell("invalid", LEAK, etp=4, ep=4)
    assert suspect(etp=8, ep=4)
    assert not suspect(ep=4)
    assert not suspect(mbs=2)


def test_reasons_are_kept_apart(bench):
    tell, suspect = bench
    tell("invalid", LEAK, etp=2, mbs=2)
    tell("invalid", "another reason", etp=2, mbs=4)
    assert not suspect(etp=2, mbs=8)


def test_one_like_them_that_runs_clears_them(bench):
    tell, suspect = bench
    tell("invalid", LEAK, manual_gc=True, mbs=2)
    tell("invalid", LEAK, manual_gc=True, mbs=4)
    assert suspect(manual_gc=True, mbs=8)
    tell("ok", manual_gc=True, mbs=8)
    assert not suspect(manual_gc=True, mbs=16)


def test_other_failures_say_nothing_here(bench):
    tell, suspect = bench
    tell("crash", LEAK, manual_gc=True, mbs=2)
    tell("crash", LEAK, manual_gc=True, mbs=4)
    assert not suspect(manual_gc=True, mbs=8)
