"""How many layouts per second the simulator prices on one core (it calls no threaded routine).

Example: ``python benchmarks/bench_simulator.py --json``
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from simulator.hardware import parse_cluster
from simulator.job import Jobs, make_jobs
from simulator.models import model
from simulator.step import simulate_step


def space(size: int, seed: int = 0) -> Jobs:
    """A random batch of layouts of a MoE model on 64 GPUs."""
    rng = np.random.default_rng(seed)

    def pick(*values: int) -> np.ndarray:
        return rng.choice(values, size)

    return make_jobs(
        model("qwen3-30b-a3b"), parse_cluster("64xH200-SXM5-141GB"), gbs=1024, seq_len=4096,
        tp=pick(1, 2, 4), pp=pick(1, 2, 4, 8), vpp=pick(1, 2), cp=pick(1, 2), ep=pick(1, 2, 4, 8), mbs=pick(1, 2, 4),
        recompute=pick(0, 1, 2, 4, 32, 128), dispatcher=pick(1, 2, 3), precision=pick(0, 1, 3),
        ep_overlap=pick(0, 1), cuda_graph=pick(0, 1, 12), zero_stage=pick(1, 1, 3),
    )  # fmt: skip


def main() -> None:
    """Print layouts per second of the best of several repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=50_000, help="layouts in the batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    jobs = space(options.size)
    seconds = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        simulate_step(jobs)
        seconds.append(time.perf_counter() - start)
    result = {"layouts": options.size, "seconds": min(seconds), "layouts_per_s": options.size / min(seconds)}
    print(
        json.dumps(result) if options.json else f"{result['layouts_per_s']:,.0f} layouts/s ({options.size:,} layouts)"
    )


if __name__ == "__main__":
    main()
