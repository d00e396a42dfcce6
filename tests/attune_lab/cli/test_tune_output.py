"""What `attune tune` prints for people: a line for each run, why in a file, the result last."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY = Path(__file__).with_name("tiny.sh")
WORDS = ("tune", TINY, "--cluster", "8xH200-SXM5-141GB", "--budget", "30x", "--seed", "101")


@pytest.mark.parametrize("columns", [80, 120])
def test_the_end_of_a_campaign(attune, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = (*WORDS, "--without", "noise-band", "--out", "my tuning")
    shown = attune(*words)
    result = attune(*words, "--json").json
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= columns

    top = next(place for place, line in enumerate(lines) if line.startswith(" run "))
    rows = lines[top + 2 : top + 2 + len(result["runs"])]
    assert [row.split()[0] for row in rows] == [run["label"].removesuffix("-search") for run in result["runs"]]

    box = next(place for place, line in enumerate(lines) if line.startswith("╭"))
    assert lines[-1].startswith("╰")
    told = " ".join(line.strip("│ ") for line in lines[box:])
    assert "tuner attune, policy catalog, rules off: noise-band, seed 101" in told
    assert "campaign folder  'my tuning'" in lines

    live = [line for line in shown.stderr.splitlines() if " -> " in line]
    assert live
    assert all(len(line) <= columns for line in live)


def test_the_decisions_end_with_what_is_shipped(attune, tmp_path):
    result = attune(*WORDS, "--out", tmp_path / "c", "--json").json
    lines = (tmp_path / "c" / "decisions.txt").read_text().splitlines()
    assert lines[: len(result["decisions"])] == result["decisions"]
    assert not result["kept_baseline"]
    assert lines[-1].startswith(f"shipped {result['shipped_from']}: measured again {result['gain_pct']:+.1f}% (")
    assert result["shipped_from"] in [run["label"] for run in result["runs"] if run["purpose"] == "search"]
