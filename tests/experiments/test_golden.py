"""The evaluation on recorded curves, on the committed extract: what it may never say of real Megatron-LM pairs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import experiments
from experiments.golden import evaluate, main
from experiments.golden_report import by_case, half_of, legitimate, other_start, report, told_apart

FOLDER = Path(experiments.__file__).parent / "golden_extract"


@pytest.fixture(scope="module")
def judged():
    return evaluate(FOLDER)


def test_recorded_pairs_that_differ_in_performance_settings_alone_pass(judged):
    pairs = [p for p in judged if legitimate(p)]
    assert len(pairs) >= 20
    assert [p.reason for p in pairs if p.verdict != "pass"] == []


def test_runs_from_other_weights_are_not_judged(judged):
    pairs = [p for p in judged if other_start(p)]
    assert len(pairs) >= 5
    assert all(p.verdict == "inconclusive" or abs(p.row["first_rel_diff"]) < 1.2e-5 for p in pairs)


def test_another_objective_from_the_same_weights_is_told_apart(judged):
    pairs = [p for p in judged if told_apart(p)]
    assert sum(p.verdict == "reject" for p in pairs) >= 0.9 * len(pairs)


def test_the_report_counts_every_pair_and_explains_every_rejection(judged, tmp_path, capsys):
    found = report(judged)
    assert sum(sum(counts.values()) for counts in found["groups"].values()) == found["pairs"] == len(judged)
    assert all(r["cause"] for r in found["rejected"])
    main([str(FOLDER), "--out", str(tmp_path)])
    assert (tmp_path / "golden.json").stat().st_size > 0
    assert "Wilson" in capsys.readouterr().out


@given(hits=st.lists(st.booleans(), min_size=2, max_size=20))
def test_resampling_by_case_covers_the_share(hits):
    cases = [(f"a{i}", f"b{i}") for i in range(len(hits))]
    low, high = by_case(cases, np.array(hits, dtype=float), draws=100)
    assert 0 <= low <= high <= 1
    assert low <= np.mean(hits) + 1e-9 or high >= np.mean(hits) - 1e-9
    if len(set(hits)) == 1:
        assert low == high == float(hits[0])


def test_halves_follow_the_case_alone():
    assert half_of("g0001") == half_of("g0001")
    assert {half_of(f"g{i:04d}") for i in range(100)} == {"A", "B"}
