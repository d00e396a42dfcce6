"""The four study models from their public recipes: campaigns over budgets and seeds, each held to its promises.

    python -m experiments.study_models --out results [--workers 2] [--tuner attune] [--seeds 10] [--json]

A campaign keeps its promises when it never exceeded its budget, and what it ships starts, fits in memory in its world,
passes the gate, reads back identically, and gained more than the noise (or is the baseline, and says so).
All figures are simulated. Finished campaigns in ``--out`` are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attune_lab.study.jobs import CampaignJob

MODELS = ("llama-3.1-405b", "glm-4.5", "mixtral-8x22b", "minimax-m2")
BUDGETS = ("20x", "40x")
CLUSTER = "64xH200-SXM5-141GB"


def figures(job: CampaignJob) -> dict[str, Any]:
    """One campaign's figures, with the promises it broke (normally none)."""
    result = json.loads((job.folder / "result.json").read_bytes())
    return {
        "model": job.recipe.name,
        "budget": job.spec.budget,
        "seed": job.world,
        "tuner": job.tuner.name,
        "broken": broken_promises(result),
        **{key: result[key] for key in ("gain_pct", "noise_band_pct", "kept_baseline", "payback_hours")},
        **{key: result[key] for key in ("gpu_hours_budget", "gpu_hours_spent", "stop_reason")},
        "runs": len(result["runs"]),
        "failed_runs": sum(run["status"] not in ("ok", "invalid") for run in result["runs"]),
    }


def broken_promises(result: dict[str, Any]) -> list[str]:
    """What a finished campaign promised and did not keep, in words."""
    from attune_lab.recipe import Recipe
    from attune_lab.recipe.constraints import errors
    from attune_lab.recipe.files import load
    from simulator.hardware import parse_cluster

    shipped = Recipe.from_canonical(result["shipped_canonical"])
    final = next(run for run in result["runs"] if run["label"] == result["shipped_label"])
    promises = {
        "it exceeded its budget": result["gpu_hours_spent"] <= result["gpu_hours_budget"],
        "the ledger does not add up": abs(sum(run["gpu_hours"] for run in result["runs"]) - result["gpu_hours_spent"])
        < 1e-6 * result["gpu_hours_spent"],
        "the shipped recipe cannot start": not errors(shipped, parse_cluster(result["cluster"])),
        "the shipped recipe did not run": final["status"] == "ok",
        "the gate did not pass it": result["gate"]["verdict"] == "pass",
        "the shipped file reads back differently": load(result["shipped_path"]).recipe.digest == shipped.digest,
        "it shipped a gain inside the noise": result["kept_baseline"] or result["gain_pct"] > result["noise_band_pct"],
        "it kept the baseline but shipped a change": not result["kept_baseline"] or result["gain_pct"] == 0,
    }
    return [broken for broken, kept in promises.items() if not kept]


def study(out: Path, *, tuner: str, seeds: int, workers: int) -> tuple[list[dict[str, Any]], float]:
    """Every campaign's figures, in order, and the seconds the whole study took.

    Raises:
        EnvironmentFault: a campaign did not come to its end.
    """
    from attune_lab.contracts import EnvironmentFault
    from attune_lab.study.jobs import campaign_jobs
    from attune_lab.study.run import run_study
    from attune_lab.study.spec import StudySpec

    start = time.perf_counter()
    rows = []
    for budget in BUDGETS:
        named = {"name": f"study-models-{budget}", "recipes": MODELS, "clusters": (CLUSTER,), "budget": budget}
        spec = StudySpec.model_validate({**named, "worlds": seeds, "tuners": (tuner,), "oracle": False})
        folder = (out / budget).resolve()
        campaigns = run_study(spec, folder, workers=workers).campaigns
        ended = campaigns[campaigns["status"] != "finished"]
        if len(ended):
            raise EnvironmentFault(f"{len(ended)} campaigns in {folder} failed: {ended['stop_reason'].iloc[0]}")
        rows += [figures(job) for job in campaign_jobs(spec, folder)]
    return rows, time.perf_counter() - start


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: one line per model and budget."""
    lines = [
        "| model | budget | campaigns | mean gain | best gain | kept baseline | budget used | runs | failed runs |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model in MODELS:
        for budget in BUDGETS:
            group = [row for row in rows if (row["model"], row["budget"]) == (model, budget)]
            gains = [row["gain_pct"] for row in group]
            used = statistics.mean(row["gpu_hours_spent"] / row["gpu_hours_budget"] for row in group)
            lines.append(
                f"| {model} | {budget} | {len(group)} | {statistics.mean(gains):+.1f} % | {max(gains):+.1f} % "
                f"| {sum(row['kept_baseline'] for row in group)} | {100 * used:.0f} % "
                f"| {statistics.mean(row['runs'] for row in group):.1f} "
                f"| {statistics.mean(row['failed_runs'] for row in group):.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the study and print it; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tuner", default="attune")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, seconds = study(options.out, tuner=options.tuner, seeds=options.seeds, workers=options.workers)
    broken = {f"{row['model']} {row['budget']} seed {row['seed']}": row["broken"] for row in rows if row["broken"]}
    if options.json:
        print(json.dumps({"seconds": seconds, "broken": broken, "campaigns": rows}))
    else:
        print(table(rows))
        print(f"\n{len(rows)} campaigns in {seconds:.0f} s; promises broken: {broken or 'none'}")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
