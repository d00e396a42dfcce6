"""Which trials are run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attune_lab.testing import FakeGate, FakeVerdict, Outcome

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
