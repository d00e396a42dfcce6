"""`attune simulate --explain`: the trees in JSON, what is printed, and the error stated beside every prediction."""

import json
from typing import Any

import pytest

SIMULATE = ("simulate", "qwen3-235b-a22b", "--cluster", "128xH100-SXM5-80GB")


def assert_sums(term: dict[str, Any]) -> None:
    for child in term.get("children", ()):
        assert_sums(child)
    if "children" in term:
        assert sum(child["value"] for child in term["children"]) == pytest.approx(term["value"], rel=1e-9, abs=1e-9)


def test_the_trees_explain_the_numbers_printed(attune):
    data = attune(*SIMULATE, "--explain", "--json").json
    trees = data["explain"]
    assert trees["step_time"]["value"] == data["step_time_s"]
    assert trees["peak_memory"]["value"] / 2**30 == pytest.approx(data["peak_memory_gib"])
    assert {child["name"]: child["value"] for child in trees["step_time"]["children"]} == data["breakdown"]
    assert_sums(trees["step_time"])
    assert_sums(trees["peak_memory"])
    used = set(trees["step_time"]["elasticities"]) | set(trees["peak_memory"]["elasticities"])
    assert used <= set(trees["constants"])
    assert trees["calibration"]["rows_fitted"] > 1000
    assert all(one["what"] and one["source"] for one in trees["constants"].values())


def test_losses_come_largest_first_with_their_figures(attune):
    data = attune(*SIMULATE, "--explain", "--json").json
    stakes = [symptom["at_stake"] for symptom in data["symptoms"]]
    assert stakes == sorted(stakes, reverse=True)
    told = {symptom["name"]: symptom["at_stake"] for symptom in data["symptoms"]}
    assert told["exposed_ep_a2a"] == pytest.approx(data["breakdown"]["exposed_ep"] / data["step_time_s"])
    assert all(symptom["evidence"] for symptom in data["symptoms"])


def test_every_prediction_states_its_error(attune):
    data = attune(*SIMULATE, "--json").json
    assert 0 < data["step_time_sd_s"] < data["step_time_s"]
    assert all({"of", "among", "median", "runs"} <= error.keys() for error in data["typical_error"])
    assert "explain" not in data


def test_it_reads_well_in_a_narrow_terminal(attune, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short = attune(*SIMULATE, "--explain", "--explain-depth", "1").stdout
    deep = attune(*SIMULATE, "--explain", "--explain-depth", "4").stdout
    for text in (short, deep):
        assert max(map(len, text.splitlines())) <= 80
        assert "Why this step time" in text
        assert "Sources of formulas and tables" in text
        assert "±" in text
        assert "``" not in text
    assert "matrix product" in deep
    assert "matrix product" not in short
    assert len(short.splitlines()) < len(deep.splitlines()) / 2


def test_typical_errors_are_printed_where_there_is_a_report(attune, monkeypatch):
    row = {"group": "H100-SXM5-80GB", "time_rows": 1234, "time_bias": 0.0, "time_median": 0.051}
    content = json.loads(json.dumps({"figures": {}, "tables": {"accelerator": [row]}}))
    monkeypatch.setattr("simulator.explain.accuracy.report", lambda: content)
    out = attune(*SIMULATE)
    assert "held out of the fit, were off by (median) H100-SXM5-80GB: step time 5.1 % (1,234 runs)" in " ".join(
        out.stdout.split()
    )


def test_a_depth_below_one_is_refused(attune):
    assert attune(*SIMULATE, "--explain", "--explain-depth", "0").code == 2
