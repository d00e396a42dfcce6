"""What the speed benchmark prints, at sizes that take no time."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ("--size", "50", "--repeats", "1", "--calls", "2", "--enumerate", "2000", "--peer-seconds", "0.01")


def run(*options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks/simulator_speed.py"), *TINY, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_one_object_with_every_section(tmp_path):
    figures = json.loads(run("--json", "--calculon", str(tmp_path)))
    assert 1000 < figures["enumeration"]["layouts"] < 3000
    assert figures["enumeration"]["fitting"] >= figures["enumeration"]["front"] > 0
    assert 0 < figures["enumeration"]["peak_rss_gib"] < 2
    assert set(figures["where"]) == {"command", "date", "machine", "load", "versions"}
    assert figures["batch"]["moe_layouts_per_s"] > 0
    assert figures["batch"]["dense_layouts_per_s"] > 0
    assert figures["cold_call"]["worst_ms"] >= figures["cold_call"]["median_ms"] > 0
    assert figures["cold_call"]["calls"] == 2
    assert set(figures["peers"]) == {"llm-analysis", "Calculon", "SimuMax"}
    for peer in figures["peers"].values():
        assert "absent" in peer or {"layouts_per_s", "layouts", "refused", "ratio"} == set(peer)
    assert "is no checkout" in figures["peers"]["Calculon"]["absent"]
    assert "--simumax" in figures["peers"]["SimuMax"]["absent"]


def test_lines_for_people():
    assert [line.split()[0] for line in run().splitlines()][:4] == ["where", "enumeration", "batch", "one"]
