"""Labels from traces written by hand."""

from __future__ import annotations

from baselines.agents.traces import PATIENCE, Step, labels


def test_each_mode_is_counted():
    trace = [
        Step({"tp": 1}, "tp", ran=True, status="ok", gain=0.1),
        Step({"tp": 1}, "pp", ran=True, status="oom"),
        Step({"tp": 1}, "tp", repeats="oom"),
        Step({"tp": 2}, "tp", repeats="ok"),
        Step({"mbs": 2}, "mbs", dropped=3, vetoed=True, ran=True, status="ok"),
        Step({"mbs": 4}, "mbs", illegal=True, vetoed=True),
        Step(stray=True, ran=True, status="ok"),
    ]
    assert labels(trace) == {
        "step_repetition": 2,
        "loss_of_history": 1,
        "reasoning_action_mismatch": 1,
        "ignored_input": 1,
        "unaware_of_termination": 0,
        "fields_outside_space": 3,
        "illegal": 1,
        "strays": 1,
    }


def test_runs_after_convergence():
    def ran(gain):
        return Step({"tp": 1}, "tp", ran=True, status="ok", gain=gain)

    idle = [ran(0.001)] * PATIENCE
    assert labels(idle)["unaware_of_termination"] == 0
    assert labels([*idle, ran(0.0), ran(0.0)])["unaware_of_termination"] == 2
    assert labels([*idle, ran(0.2), ran(0.0)])["unaware_of_termination"] == 1
    assert labels([])["unaware_of_termination"] == 0
