"""Deciding as the runs go on: never another verdict than the whole probe, and most faults within five steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.gate import Curve, judge
from attune_lab.gate.convergence import check, decide

STEPS = np.arange(1, 21)
LOSS = 9.0 - 0.5 * np.log(STEPS)


def curve(relative=0.0, norm=1.0):
    loss = LOSS * np.exp(relative * np.ones(20))
    return Curve(STEPS, loss, np.zeros(20), {"grad_norm": norm * np.full(20, 3.0)})


@pytest.mark.parametrize(
    ("relative", "norm", "step"),
    [
        (1e-3, 1.0, 1),
        (0.0, 2.0, 1),
        (np.where(STEPS >= 3, 4e-3, 0.0), 1.0, 3),
        (np.where(STEPS >= 4, 4e-3, 0.0), 1.0, 5),
        (np.where(STEPS >= 12, 9e-3, 0.0), 1.0, 20),
    ],
)
def test_a_fault_is_decided_at_the_first_look_that_shows_it(relative, norm, step):
    found = decide(curve(), curve(relative, norm))
    assert found.step == step
    assert all(c.outcome == "reject" for c in found.checks)
    reported = next(c for c in check(curve(), curve(relative, norm)) if c.name == "convergence.sequential")
    assert reported.figures["step"] == step


def test_runs_without_a_fault_stay_open():
    assert decide(curve(), curve(1e-5)).step is None


@given(slope=st.floats(-5e-3, 5e-3), noise=st.floats(0, 1e-3), seed=st.integers(0, 1000))
def test_a_decision_on_the_way_is_the_decision_of_the_whole(slope, noise, seed):
    relative = slope * (STEPS - 1) / 19 + noise * np.random.default_rng(seed).normal(size=20)
    candidate = curve(relative)
    whole = judge([], check(curve(), candidate)).verdict
    early = [decide(curve().at(STEPS[:n]), candidate.at(STEPS[:n])).step for n in range(1, 21)]
    known = [step for step in early if step is not None]
    assert bool(known) == (whole == "reject")
    if known:
        first = early.index(known[0])
        assert all(step is not None for step in early[first:])


def test_runs_from_different_weights_need_not_go_on():
    found = decide(curve().at(STEPS[:1]), curve(3e-3).at(STEPS[:1]), start="The layout differs")
    assert found.step == 1
    assert found.checks[0].name == "convergence.start"
