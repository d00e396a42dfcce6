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


def damaged_copy(folder, name, content):
    for file in FOLDER.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / name).write_bytes(content)
    return folder


PAIRS = (FOLDER / "pairs.csv").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("curves.parquet", (FOLDER / "curves.parquet").read_bytes()[:300], "cannot be read"),
        ("cases.parquet", b"", "cannot be read"),
        ("pairs.csv", b"\x90\xff\x00\x01", "cannot be read"),
        ("pairs.csv", b"case_a,case_b\n", "lacks the column label"),
        ("pairs.csv", PAIRS.splitlines()[0] + b"\nnobody," + PAIRS.splitlines()[1].partition(b",")[2], "case nobody"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(name, content, words, tmp_path, capsys):
    assert main([str(damaged_copy(tmp_path, name, content))]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_folder_without_the_files_is_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "cases.parquet: cannot be read" in capsys.readouterr().err
