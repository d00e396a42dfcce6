"""Rows of a campaign whose every figure can be worked out by hand.

The cluster has 8 GPUs; a run costs 2 s of start-up and its steps, of 1 s for the baseline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))
from scripted import campaign

from attune_lab.campaign.store import read_campaign
from attune_lab.recipe import Recipe
from attune_lab.study.rows import Timing, campaign_row, run_rows
from attune_lab.testing import FakeGate, FakeSpace, Outcome

HOURS = 8 / 3600
"""GPU-hours of a second."""

TIMES = {2: 0.8, 16: 0.5, 8: 1.3, 4: 1.0, 32: 0.81}
EDITS = [{"tp": 8}, {"tp": 1}, {"tp": 32}, {"tp": 2}, {"tp": 1}, {"tp": 7}, {"tp": 16}]


def outcome(recipe: Recipe, steps: int, label: str) -> Outcome:
    """tp=1 dies in its first step, the others take what `TIMES` says."""
    tp = recipe.settings["tp"]
    return Outcome("oom", steps_made=1) if tp == 1 else Outcome(step_time_s=TIMES[tp])


class Truth:
    """tp=16 is fast and faulty; everything is 1 % slower in truth than measured."""

    def true_gain(self, recipe: Recipe) -> float:
        return 0.99 / TIMES[recipe.settings["tp"]] - 1

    def is_faulty(self, recipe: Recipe) -> tuple[str, ...]:
        return ("D-1",) if recipe.settings["tp"] == 16 else ()


def rows(folder: Path, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    gate = FakeGate(lambda recipe: "no" if recipe.settings["tp"] == 16 else None)
    space = FakeSpace(lambda recipe: ["7 is odd"] if recipe.settings["tp"] == 7 else ())
    parts = {"edits": EDITS, "script": outcome, "gate": gate, "space": space} | changes
    result = campaign(folder, **parts).to_json()
    return campaign_row(result, read_campaign(folder), Timing(3.0, 1.0), Truth()), run_rows(result)


def test_a_campaign_by_hand(tmp_path: Path) -> None:
    row, _ = rows(tmp_path)
    assert row["gain_pct"] == pytest.approx(25)
    assert row["true_gain_pct"] == pytest.approx(100 * (0.99 / 0.8 - 1))
    assert (row["shipped_faulty"], json.loads(row["faults"])) == (False, [])
    assert row["best_searched_gain_pct"] == pytest.approx(100)
    assert row["best_searched_faulty"]
    assert (row["gate_stops"], row["gate_stops_right"]) == (1, 1)
    assert (row["runs"], row["failed_runs"], row["invalid_proposals"], row["repeats"]) == (3 + 5 + 2, 1, 1, 1)
    assert row["gpu_hours_failed"] == pytest.approx(3 * HOURS)
    assert row["share_failed"] == pytest.approx(row["gpu_hours_failed"] / row["gpu_hours_spent"])
    # Three runs of the baseline, tp=8, the failed one and tp=32, whose 23.5 % are short of 0.95 * 25 %; then tp=2.
    searched = (2 + 8 * 1.3) + 3 + (2 + 8 * 0.81) + (2 + 8 * 0.8)
    assert 100 * (1 / 0.81 - 1) < 0.95 * 25
    assert row["gpu_hours_to_95"] == pytest.approx((3 * 22 + searched) * HOURS)
    assert row["run_cost_gpu_hours"] == pytest.approx(10 * HOURS)
    assert row["gpu_hours_budget"] == pytest.approx(400 * HOURS)
    assert (row["wall_s"], row["tuner_s"], row["input_tokens"], row["usd_llm"]) == (3.0, 1.0, 0.0, 0.0)


def test_the_runs_of_it(tmp_path: Path) -> None:
    _, runs = rows(tmp_path)
    search = [run for run in runs if run["purpose"] == "search"]
    assert [run["status"] for run in search] == ["ok", "oom", "ok", "ok", "oom", "invalid", "ok"]
    assert [run["best_gain_pct"] for run in search] == pytest.approx([0, 0, 23.45679, 25, 25, 25, 100])
    assert [run["repeated"] for run in search] == [False] * 4 + [True, False, False]
    assert search[0]["gain_pct"] == pytest.approx(100 * (1 / 1.3 - 1))
    assert search[1]["gain_pct"] is None
    assert search[0]["gpu_hours_before"] == pytest.approx(3 * 22 * HOURS)
    assert json.loads(search[0]["changed"]) == {"tp": [4, 8]}
    assert runs[0]["gpu_hours_before"] == 0


def test_a_campaign_that_keeps_its_baseline(tmp_path: Path) -> None:
    row, _ = rows(tmp_path, edits=[{"tp": 8}, {"tp": 1}])
    assert (row["kept_baseline"], row["gain_pct"], row["gpu_hours_to_95"]) == (True, 0, None)
    assert (row["best_searched_gain_pct"], row["best_searched_faulty"], row["gate_stops"]) == (0, False, 0)
    assert row["true_gain_pct"] == pytest.approx(-1)


def test_without_an_oracle_truths_are_left_out(tmp_path: Path) -> None:
    result = campaign(tmp_path).to_json()
    row = campaign_row(result, read_campaign(tmp_path), Timing(), None)
    assert not {"true_gain_pct", "shipped_faulty", "faults", "gate_stops_right"} & {*row}


def test_a_stopwatch_adds_up() -> None:
    timing = Timing()
    for _ in range(2):
        with timing:
            pass
    assert timing.tuner_s > 0
