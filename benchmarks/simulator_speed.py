"""How fast the simulator prices layouts on one core, beside other cost models in the same run.

Example: ``python benchmarks/simulator_speed.py --json --calculon ~/calculon --simumax ~/SimuMax``
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import datetime
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peers

from simulator.enumeration import Space, declare, enumerate_layouts
from simulator.hardware import parse_cluster
from simulator.job import Jobs, Precision, make_jobs
from simulator.models import model, models
from simulator.step import simulate_step

CLUSTER = "64xH200-SXM5-141GB"


def batch(size: int, *, name: str, experts: bool) -> Jobs:
    """Random layouts of a model, interleaved or not."""
    rng = np.random.default_rng(0)

    def pick(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return rng.choice(values, size)

    routed = {"ep": pick(1, 2, 4, 8), "dispatcher": pick(1, 2, 3), "ep_overlap": pick(0, 1)} if experts else {}
    return make_jobs(
        model(name), parse_cluster(CLUSTER), gbs=1024, seq_len=4096, tp=pick(1, 2, 4), pp=pick(1, 2, 4, 8),
        vpp=pick(1, 2), cp=pick(1, 2), mbs=pick(1, 2, 4), recompute=pick(0, 1, 2, 4, 32, 128),
        precision=pick(0, 1, 3), cuda_graph=pick(0, 1, 12), zero_stage=pick(1, 1, 3), **routed,
    )  # fmt: skip


def batch_rate(size: int, repeats: int, **kind: Any) -> float:
    """Layouts per second of time and memory together, the best of several repeats."""
    jobs = batch(size, **kind)
    return size / min(_seconds(lambda: simulate_step(jobs)) for _ in range(repeats))


def cold_calls(count: int) -> dict[str, float]:
    """Milliseconds from Python numbers to an estimate of one layout; no two calls have model and layout in common."""
    rng = np.random.default_rng(1)
    names = sorted(name for name, shape in models().items() if not shape.hybrid)
    cluster = parse_cluster(CLUSTER)
    times = []
    for turn in range(count + 1):
        shape = model(names[turn % len(names)])
        sizes = {"tp": rng.choice((1, 2, 4)), "pp": rng.choice((1, 2, 4)), "mbs": rng.choice((1, 2, 4))}
        batch = 64 * int(rng.integers(1, 1000))

        def call(shape: Any = shape, sizes: Any = sizes, batch: int = batch) -> object:
            return simulate_step(make_jobs(shape, cluster, gbs=batch, seq_len=4096, vpp=2, recompute=1, **sizes))

        times.append(1e3 * _seconds(call))
    times = times[1:]  # the first call of a process reads the tables of constants
    return {"median_ms": statistics.median(times), "worst_ms": max(times), "calls": count}


def million() -> Space:
    """More than a million legal layouts of a MoE model."""
    return declare(
        model("qwen3-30b-a3b"), parse_cluster(CLUSTER), gbs=1024, seq_len=4096,
        tp=(1, 2, 4), pp=(1, 2, 4, 8), vpp=(1, 2, 3, 4, 6, 12), cp=(1, 2, 4), ep=(1, 2, 4, 8, 16), etp=(1, 2),
        mbs=(1, 2, 4, 8), recompute=(0, 1, 2, 4, 6, 32, 128), dispatcher=(0, 1, 2, 3), ep_overlap=(False, True),
        precision=(Precision.BF16, Precision.FP8_TENSORWISE, Precision.FP8_BLOCKWISE),
        overlap_grad_reduce=(False, True),
    )  # fmt: skip


def enumeration(points: int | None) -> dict[str, float]:
    """Seconds to make and price a space and to find its best layouts and Pareto front, with the process's peak memory.

    ``points``: take about so many of `million`'s, spread over it.
    """
    start = time.perf_counter()
    space = million()
    if points is not None:
        every = max(space.size // points, 1)
        space = replace(space, sizes={name: column[::every] for name, column in space.sizes.items()})
    result = enumerate_layouts(space)
    seconds = time.perf_counter() - start
    return {
        "layouts": result.legal,
        "fitting": result.fitting,
        "front": result.front.index.size,
        "seconds": seconds,
        "layouts_per_s": result.legal / seconds,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def peer_rate(price: peers.Price, seconds: float) -> dict[str, float]:
    """Layouts per second of a peer, over as many different ones as it prices in the time allowed."""
    priced, refused, spent = 0, 0, 0.0
    for layout in peers.layouts():
        if spent > seconds:
            break
        start = time.perf_counter()
        try:
            price(layout)
        except Exception:  # a peer may say no in any way; what it says no to is counted and not timed
            refused += 1
            continue
        spent += time.perf_counter() - start
        priced += 1
    return {"layouts_per_s": priced / spent if spent else 0.0, "layouts": priced, "refused": refused}


def where() -> dict[str, Any]:
    """Command, machine and day of these figures; a busy machine shows in its load."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every section; enumeration comes first, so that the peak memory is its own."""
    figures: dict[str, Any] = {"where": where(), "enumeration": enumeration(options.enumerate)}
    moe = batch_rate(options.size, options.repeats, name="qwen3-30b-a3b", experts=True)
    dense = batch_rate(options.size, options.repeats, name="gpt3-175b", experts=False)
    figures["batch"] = {"layouts": options.size, "moe_layouts_per_s": moe, "dense_layouts_per_s": dense}
    figures["cold_call"] = cold_calls(options.calls)
    figures["peers"] = {}
    found: dict[str, peers.Price | str] = {
        "llm-analysis": peers.llm_analysis(),
        "Calculon": peers.calculon(options.calculon),
        "SimuMax": peers.simumax(options.simumax),
    }
    for name, price in found.items():
        if isinstance(price, str):
            figures["peers"][name] = {"absent": price}
            continue
        rate = peer_rate(price, options.peer_seconds)
        ratio = moe / rate["layouts_per_s"] if rate["layouts"] else None
        figures["peers"][name] = {**rate, "ratio": ratio}
    return figures


def show(figures: dict[str, Any]) -> None:
    """The figures as lines."""
    here = figures["where"]
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    print(f"where        {here['date']}, {here['machine']}, load {here['load']:.1f}, {versions}: {here['command']}")
    one, many, cold = figures["enumeration"], figures["batch"], figures["cold_call"]
    print(
        f"enumeration  {one['layouts']:,} layouts in {one['seconds']:.2f} s ({one['layouts_per_s']:,.0f}/s), "
        f"{one['fitting']:,} fit, {one['front']} on the front, peak {one['peak_rss_gib']:.2f} GiB"
    )
    print(
        f"batch        MoE, interleaved {many['moe_layouts_per_s']:,.0f} layouts/s   "
        f"dense {many['dense_layouts_per_s']:,.0f} layouts/s   ({many['layouts']:,} in a batch)"
    )
    print(f"one layout   median {cold['median_ms']:.2f} ms, worst of {cold['calls']} {cold['worst_ms']:.2f} ms")
    for name, peer in figures["peers"].items():
        if "absent" in peer:
            print(f"{name:12s} {peer['absent']}")
        else:
            ratio = f"we are {peer['ratio']:,.0f} times as fast" if peer["ratio"] else "nothing was priced"
            print(f"{name:12s} {peer['layouts_per_s']:,.1f} layouts/s ({peer['layouts']} priced, {ratio})")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--size", type=int, default=50_000, help="layouts in a batch")
    parser.add_argument("--repeats", type=int, default=3, help="batches; the fastest counts")
    parser.add_argument("--calls", type=int, default=200, help="single calls")
    parser.add_argument("--enumerate", type=int, help="points of the space; all when not given", metavar="POINTS")
    parser.add_argument("--calculon", type=Path, help="checkout of calculon-ai/calculon", metavar="DIR")
    parser.add_argument("--simumax", type=Path, help="checkout of MooreThreads/SimuMax", metavar="DIR")
    parser.add_argument("--peer-seconds", type=float, default=5.0, help="time for each peer")
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
