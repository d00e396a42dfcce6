"""What the benchmark of the oracle prints, of one model in one world."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ("--models", "llama-3.1-405b", "--gpus", "64", "--worlds", "1")


def run(*options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks/bench_oracle.py"), *TINY, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_one_object_with_a_row_for_each_model_and_size():
    figures = json.loads(run("--json"))
    (row,) = figures["rows"]
    assert row["proven"]
    assert 0 < row["median_s"] <= row["slowest_s"] == figures["slowest_s"]
    assert 0 < row["evaluated"] < row["legal_points"]
    assert set(figures["where"]) == {"command", "date", "machine", "load", "python"}


def test_a_line_for_each_model_and_size():
    assert ["64xH200-SXM5-141GB" in line for line in run().splitlines()] == [False, True]
