"""Tuners that hang, exit, crash, eat memory or talk nonsense: a row says so, and the study goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from small_study import study

from attune_lab.contracts import UserError
from attune_lab.study.run import run_study

ONE_WORLD = "worlds: {first: 100, count: 1}\n"


def test_every_way_to_fail_is_a_row_and_the_budget_is_the_same_for_all(tmp_path: Path) -> None:
    tuners = "[uniform, raises, leaves, exits, crashes, eats, nonsense, invalid, chatty]"
    spec = study(tuners, ONE_WORLD + "memory_limit_gib: 3\n")
    rows = run_study(spec, tmp_path / "out", workers=2).campaigns.set_index("tuner")
    ended = {
        "uniform": "finished", "raises": "tuner_failed", "leaves": "tuner_failed", "exits": "died",
        "crashes": "died", "eats": "tuner_failed", "nonsense": "tuner_failed", "invalid": "finished",
        "chatty": "finished",
    }  # fmt: skip
    assert rows["status"].to_dict() == ended
    assert "RuntimeError: no idea" in rows["stop_reason"]["raises"]
    assert "exit code 3" in rows["stop_reason"]["exits"]
    assert "SIGSEGV" in rows["stop_reason"]["crashes"]
    assert "MemoryError" in rows["stop_reason"]["eats"]
    assert "20 proposals were invalid" in rows["stop_reason"]["invalid"]
    assert rows["invalid_proposals"]["invalid"] == 20
    assert rows["gpu_hours_budget"].nunique() == 1
    assert (rows["gpu_hours_spent"] <= rows["gpu_hours_budget"]).all()
    assert (rows.drop("uniform")["runs"] >= 4).all()  # the baseline's own, and the one sound proposal
    (printed,) = (tmp_path / "out").rglob("chatty/*/output.txt")
    assert printed.read_text().split("\n")[:2] == ["hello", "from outside"]


def test_all_tuners_that_cannot_be_set_up_are_named_before_anything_runs(tmp_path: Path) -> None:
    wrong = "{name: attune, label: mine, options: {without: [one-levr]}}"
    with pytest.raises(UserError, match=r"mine: .*one-levr.*; refuses: option depth: none is known"):
        run_study(study(f"[uniform, refuses, {wrong}]", ONE_WORLD), tmp_path / "out")
    assert not list(tmp_path.rglob("record.json"))


def test_a_tuner_that_hangs_is_ended_and_its_campaign_goes_to_its_finals(tmp_path: Path) -> None:
    spec = study("[sleeps, holds, forks, sleepsatonce]", ONE_WORLD + "time_limit_s: 15\n")
    rows = run_study(spec, tmp_path / "out", workers=4).campaigns.set_index("tuner")
    assert (rows["status"] == "hung").all()
    assert rows["stop_reason"].str.contains("15 s").all()
    assert (rows["gpu_hours_spent"] > 0).all()
    searched = rows.drop("sleepsatonce")
    assert searched["gpu_hours_spent"].nunique() == 1  # all made the one proposal, and whatever final it led to


def test_what_a_tuner_says_and_forges_costs_only_its_own_search(tmp_path: Path) -> None:
    spec = study("[mutters, floods, prattles, overflows, forges, abandons]", ONE_WORLD)
    tables = run_study(spec, tmp_path / "out", workers=2)
    rows = tables.campaigns.set_index("tuner")
    ended = dict.fromkeys(("mutters", "floods", "prattles", "overflows"), "tuner_failed")
    assert rows["status"].to_dict() == {**ended, "forges": "finished", "abandons": "died"}
    assert "File too large" in rows["stop_reason"]["prattles"]
    assert "Unreadable" in rows["stop_reason"]["mutters"]
    assert len(rows["stop_reason"]["floods"]) < 600
    assert rows["repeats"]["forges"] == 20
    assert rows["runs"].nunique() == 1
    assert "exit code 3" in rows["stop_reason"]["abandons"]


def test_what_a_tuner_leaves_in_its_process_never_meets_the_next_one(tmp_path: Path) -> None:
    first, again = (
        run_study(study(tuners, ONE_WORLD), tmp_path / name, workers=1)
        for name, tuners in (("first", "[dices, uniform]"), ("again", "[plants, uniform, litters, dices]"))
    )
    rows = again.campaigns.set_index("tuner")
    assert (rows["status"] == "finished").all()
    for tuner in ("dices", "uniform"):
        one, other = (tables.runs[tables.runs["tuner"] == tuner].reset_index(drop=True) for tables in (first, again))
        assert_frame_equal(one, other)
