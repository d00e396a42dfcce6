"""Seconds of one core to find and prove the optimum of a world, and the points priced for it, by study model and size.

A world's defects and memory decide how much has to be looked at: several worlds are asked, and the slowest counts.

Example: ``OMP_NUM_THREADS=1 python benchmarks/bench_oracle.py --json``
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from typing import Any

from attune_lab.space import SearchSpace
from attune_lab.study.oracle import Oracle
from attune_lab.workbench import open_workbench
from simulator.world import World

MODELS = ("llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2")
FIRST_SEED = 100
"""Seeds of development, not of results."""


def measured(model: str, cluster: str, worlds: int) -> dict[str, Any]:
    """Figures of one model on one cluster, over several worlds."""
    bench = open_workbench(model, cluster)
    seconds, found = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + worlds):
        world = World.draw(seed, bench.cluster)
        start = time.process_time()
        found.append(Oracle(SearchSpace(bench.baseline, bench.cluster), world).optimum())
        seconds.append(time.process_time() - start)
    return {
        "model": model,
        "cluster": cluster,
        "legal_points": SearchSpace(bench.baseline, bench.cluster).count(),
        "evaluated": max(optimum.evaluated for optimum in found),
        "median_s": statistics.median(seconds),
        "slowest_s": max(seconds),
        "proven": all(optimum.proven for optimum in found),
        "gain": [round(optimum.gain, 4) for optimum in found],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, with command, machine and day."""
    where = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }
    rows = [
        measured(model, f"{gpus}x{options.accelerator}", options.worlds)
        for model in options.models
        for gpus in options.gpus
    ]
    return {"where": where, "worlds": options.worlds, "rows": rows, "slowest_s": max(row["slowest_s"] for row in rows)}


def show(figures: dict[str, Any]) -> None:
    """The figures as lines."""
    here = figures["where"]
    print(f"{here['date']}, {here['machine']}, load {here['load']:.1f}, {figures['worlds']} worlds: {here['command']}")
    for row in figures["rows"]:
        print(
            f"{row['model']:<16} {row['cluster']:<20} {row['legal_points']:.1e} legal  {row['evaluated']:>8,} priced  "
            f"median {row['median_s']:.2f} s  slowest {row['slowest_s']:.2f} s  "
            f"{'proven' if row['proven'] else 'NOT PROVEN'}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--gpus", nargs="+", type=int, default=(64, 128))
    parser.add_argument("--accelerator", default="H200-SXM5-141GB")
    parser.add_argument("--worlds", type=int, default=6)
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
