"""From a finished campaign to its row in the table of campaigns and its rows in the table of runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from attune_lab.campaign.baseline import Baseline, stored_baseline
from attune_lab.campaign.finals import REFUSED, measured
from attune_lab.campaign.search import Trial
from attune_lab.contracts import Proposal
from attune_lab.recipe import Recipe

if TYPE_CHECKING:
    from attune_lab.campaign.store import CampaignRecord, RunRow

NEARLY = 0.95
"""A search has all but arrived once it has measured this share of the gain that is shipped."""


class Truth(Protocol):
    """What a simulated world knows of a recipe and no run shows."""

    def true_gain(self, recipe: Recipe) -> float:
        """Throughput gained over the baseline without noise, as a fraction."""
        ...

    def is_faulty(self, recipe: Recipe) -> Sequence[str]:
        """What keeps it from training the same model as the baseline; empty when nothing does."""
        ...


@dataclass
class Timing:
    """Wall seconds of a campaign, and of these the ones spent in its tuner (its context adds them up)."""

    wall_s: float = 0.0
    tuner_s: float = 0.0
    _entered: float = field(default=0.0, init=False)

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.tuner_s += time.perf_counter() - self._entered


def campaign_row(
    result: Mapping[str, Any], record: CampaignRecord, timing: Timing, truth: Truth | None
) -> dict[str, Any]:
    """The figures of a campaign by column (`attune_lab.study.tables.CAMPAIGN_COLUMNS`), JSON-ready.

    Args:
        result: what `attune_lab.tuning.tune_recipe` returned.
        record: its store.
        timing: what it took.
        truth: of its world; None leaves the columns that need it empty.
    """
    same = ("kept_baseline", "gain_pct", "gpu_hours_budget", "gpu_hours_spent", "run_cost_gpu_hours", "payback_hours")
    return {
        **{key: result[key] for key in (*same, "noise_band_pct")},
        "usd_gpu": result["usd_spent"],
        "usd_llm": result["llm"].get("usd", 0.0),
        "input_tokens": result["llm"].get("input_tokens", 0.0),
        "output_tokens": result["llm"].get("output_tokens", 0.0),
        "wall_s": timing.wall_s,
        "tuner_s": timing.tuner_s,
        **_bill(result),
        **_judged(result, record, truth),
    }


def run_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of every run by column (`attune_lab.study.tables.RUN_COLUMNS`), JSON-ready, in the order made."""
    rows = []
    before = best = 0.0
    for run, gain in zip(result["runs"], _gains(result), strict=True):
        if run["purpose"] == "search" and gain is not None:
            best = max(best, gain)
        same = ("label", "purpose", "status", "repeated", "gpu_hours", "tokens_per_s_per_gpu", "reason", "message")
        rows.append(
            {
                **{key: run[key] for key in same},
                "gpu_hours_before": before,
                "gain_pct": gain,
                "best_gain_pct": best,
                "changed": json.dumps(run["changed"]),
            }
        )
        before += run["gpu_hours"]
    return rows


def _gains(result: Mapping[str, Any]) -> list[float | None]:
    """Throughput of every run over the baseline's, percent; None where none was measured."""
    rates = (run["tokens_per_s_per_gpu"] if run["status"] == "ok" else None for run in result["runs"])
    return [rate and 100 * (rate / result["baseline_tokens_per_s_per_gpu"] - 1) for rate in rates]


def _bill(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the GPU-hours went to."""
    made = [run for run in result["runs"] if not run["repeated"] and run["status"] != "invalid"]
    asked = [run for run in result["runs"] if run["purpose"] == "search"]
    failed = sum(run["gpu_hours"] for run in result["runs"] if run["status"] != "ok")
    return {
        "gpu_hours_to_95": None if result["kept_baseline"] else _gpu_hours_to_nearly(result),
        "gpu_hours_failed": failed,
        "share_failed": failed / result["gpu_hours_spent"],
        "runs": len(made),
        "failed_runs": sum(run["status"] != "ok" for run in made),
        "invalid_proposals": sum(run["status"] == "invalid" and not run["repeated"] for run in asked),
        "repeats": sum(run["repeated"] for run in asked),
    }


def _gpu_hours_to_nearly(result: Mapping[str, Any]) -> float:
    """GPU-hours until the search had measured `NEARLY` the gain that is shipped.

    The final run may measure more than the search ever did; then the search's own best is what it had to reach.
    """
    gains = [
        gain if run["purpose"] == "search" else None for run, gain in zip(result["runs"], _gains(result), strict=True)
    ]
    wanted = NEARLY * min(result["gain_pct"], max(gain for gain in gains if gain is not None))
    place = next(index for index, gain in enumerate(gains) if gain is not None and gain >= wanted)
    return sum(float(run["gpu_hours"]) for run in result["runs"][: place + 1])


def _judged(result: Mapping[str, Any], record: CampaignRecord, truth: Truth | None) -> dict[str, Any]:
    """What was shipped, what the gate stopped and what would have been shipped without it, against the truth."""
    shipped, baseline = Recipe.from_canonical(result["shipped_canonical"]), stored_baseline(record.runs)
    searched_gain, searched = _best_searched(record, baseline)
    recipes = {row.label: row.recipe for row in record.runs}
    stopped = [recipes[lost["label"]] for lost in result["lost"] if lost["reason"].startswith(REFUSED)]
    row: dict[str, Any] = {"best_searched_gain_pct": 100 * searched_gain, "gate_stops": len(stopped)}
    if truth is not None:
        faults = list(truth.is_faulty(shipped))
        row |= {
            "true_gain_pct": 100 * truth.true_gain(shipped),
            "shipped_faulty": bool(faults),
            "faults": json.dumps(faults),
            "best_searched_faulty": bool(truth.is_faulty(searched)),
            "gate_stops_right": sum(bool(truth.is_faulty(recipe)) for recipe in stopped),
        }
    return row


def _best_searched(record: CampaignRecord, baseline: Baseline) -> tuple[float, Recipe]:
    """The fastest recipe of the search that gained more than the noise, and its mean gain; else the baseline."""
    trials = [trial for row in record.runs if (trial := _trial(row)) is not None]
    for gain, trial in measured(trials, baseline):
        if gain > baseline.band.of(len(trial.report.timed_step_times_s)):
            return gain, trial.proposal.recipe
    return 0.0, baseline.recipe


def _trial(row: RunRow) -> Trial | None:
    """A run of the search that told something of its own."""
    if row.purpose != "search" or row.report is None or row.repeats is not None:
        return None
    return Trial(row.label, Proposal(row.recipe), row.report)
