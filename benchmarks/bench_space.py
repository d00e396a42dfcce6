"""How many legal points the spaces of the study models have, and what counting and drawing cost.

python benchmarks/bench_space.py [--json] [--draws 300] [--recipe NAME ...] [--cluster NAME ...]

A recipe that cannot start or fit on a cluster is carried over to it first, as `attune tune` does. Times are the
processor's. *Legal share* is how many of as many draws of any value per parameter are legal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from attune_lab.space import SearchSpace
from attune_lab.workbench import open_workbench

RECIPES = ("llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2")
CLUSTERS = ("64xH200-SXM5-141GB", "128xH200-SXM5-141GB")


def measured(recipe: str, cluster: str, draws: int) -> dict[str, Any]:
    """Figures of one space: counts, seconds to prepare, milliseconds a draw."""
    bench = open_workbench(recipe, cluster)
    SearchSpace(bench.baseline, bench.cluster).count()  # reads the rules
    start = time.process_time()
    space = SearchSpace(bench.baseline, bench.cluster)
    points = space.count()
    prepared = time.process_time() - start
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(draws):
        start = time.process_time()
        space.sample(rng)
        seconds.append(time.process_time() - start)
    anything = [
        {key: each.choices[rng.integers(len(each.choices))] for key, each in space.parameters.items()}
        for _ in range(draws)
    ]
    return {
        "recipe": recipe,
        "cluster": cluster,
        "carried_over": bool(bench.carried_over),
        "points": points,
        "layouts": len(space.enumerate_layouts()),
        "parameters": len(space.parameters),
        "legal_share": sum(map(space.allows, anything)) / draws,
        "prepare_s": prepared,
        "sample_ms": 1e3 * statistics.median(seconds),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--recipe", nargs="+", default=RECIPES)
    parser.add_argument("--cluster", nargs="+", default=CLUSTERS)
    options = parser.parse_args()
    rows = [measured(recipe, cluster, options.draws) for recipe in options.recipe for cluster in options.cluster]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        carried = " (carried over)" if row["carried_over"] else ""
        print(
            f"{row['recipe']} on {row['cluster']}{carried}: {row['points']:,} legal points, "
            f"{row['layouts']:,} layouts, {row['parameters']} parameters, legal share {row['legal_share']:.2f}, "
            f"prepared in {row['prepare_s']:.3f} s, {row['sample_ms']:.3f} ms a draw"
        )


if __name__ == "__main__":
    main()
