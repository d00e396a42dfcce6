"""What the benchmark of the bench's own cost prints, on the smallest campaigns."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ("--tuner", "attune", "--campaigns", "1", "--budget", "20x", "--peer-trials", "2")


def run(*options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks/bench_overhead.py"), *TINY, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_one_object_with_every_section():
    figures = json.loads(run("--json"))
    assert set(figures["where"]) == {"command", "scenario", "date", "machine", "load", "python"}
    whole, part = figures["throughput"], figures["overhead"]
    assert whole["runs"] > 0 < part["runs"]
    assert min(whole["runs_per_s"], whole["runs_per_cpu_s"], whole["campaign_s"]) > 0
    assert part["p90_ms"] >= part["median_ms"] > 0
    assert part["median_cpu_ms"] > 0
    peer = figures["optuna"]
    assert "absent" in peer or (peer["trials"] == 2 and peer["ratio"] > 0 and peer["parameters"] > 10)


def test_lines_for_people():
    assert [line.split()[0] for line in run().splitlines()] == ["where", "scenario", "throughput", "overhead", "optuna"]
