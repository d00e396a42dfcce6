"""`attune enumerate`."""

from dataclasses import replace

import pytest

from simulator.posterior import POSTERIOR

ARGUMENTS = ("enumerate", "llama-3.1-405b", "--cluster", "512xH100-SXM5-80GB", "--top", "3")


def test_the_fastest_come_first_and_fit(attune):
    data = attune(*ARGUMENTS, "--json").json
    assert data["provenance"] == "simulated"
    assert len(data["best"]) == 3
    assert data["layouts_priced"] > data["layouts_that_fit"] > 0
    seconds = [row["step_time_s"] for row in data["best"]]
    assert seconds == sorted(seconds)
    assert seconds[0] <= data["baseline"]["step_time_s"]
    assert all(row["peak_memory_gib"] < 80 and row["usd_per_million_tokens"] > 0 for row in data["front"])


def test_people_get_a_table(attune):
    outcome = attune(*ARGUMENTS)
    assert outcome.code == 0
    assert "Fastest that fit" in outcome.stdout


@pytest.mark.parametrize("recipe", ["llama-3.1-405b", "glm-4.5"])
def test_80_columns_hold_every_word(attune, monkeypatch, recipe):
    monkeypatch.setenv("COLUMNS", "80")
    words = ("enumerate", recipe, "--cluster", "256xH200-SXM5-141GB", "--top", "3")
    best = attune(*words, "--json").json["best"]
    shown = attune(*words).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.split()).count(f"recompute {best[0]['recompute']}") > 0
    assert "held out" in shown


def test_a_margin_of_memory_is_kept(attune):
    found = attune(*ARGUMENTS, "--memory-limit", "0.8", "--json").json
    assert 0 < found["layouts_that_fit"] < attune(*ARGUMENTS, "--json").json["layouts_that_fit"]
    assert all(row["peak_memory_gib"] <= 0.8 * 79.2 for row in found["best"] + found["front"])


def test_another_calibration_is_used(attune, tmp_path):
    shifts = POSTERIOR.shifts.copy()
    shifts[POSTERIOR.constants.index("gemm_speed")] -= 3
    (tmp_path / "slower.json").write_text(replace(POSTERIOR, shifts=shifts).to_json())
    slower = attune(*ARGUMENTS, "--calibration", "slower.json", "--json").json
    known = attune(*ARGUMENTS, "--json").json
    assert slower["best"][0]["step_time_s"] > 1.05 * known["best"][0]["step_time_s"]
    assert slower["baseline"]["step_time_s"] > 1.05 * known["baseline"]["step_time_s"]
