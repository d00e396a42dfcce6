"""The report of a study: its tables as Markdown, with pictures as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from attune_lab.report.tables import Table, markdown, page
from attune_lab.study.figures import comparable, paired, ranking, resample, summary
from attune_lab.writing import write_file

CAPTIONS = {
    "best-so-far": "Best gain measured so far against GPU-hours spent: medians, with quartiles of the leading tuners.",
    "gains": "Re-measured gain over the recipe: quartiles, whiskers from 5 to 95 %, the mean as a dot.",
    "regret": "Regret: true gain of the best recipe of the world less that of the shipped one, in points.",
    "failures": "Share of the whole budget that went into runs that ended badly, by how; mean over campaigns. "
    "Shares in the tables are of what was spent.",
}


def write_report(out: Path, campaigns: pd.DataFrame, runs: pd.DataFrame, provenance: Mapping[str, Any]) -> list[Path]:
    """Write ``report.md`` and ``report.html`` into ``out`` and return their paths.

    Without matplotlib the page has no pictures and says so.
    """
    title, found = f"Study {provenance['study']}", tables(campaigns)
    intro = introduction(campaigns, provenance)
    pictures, note = _pictures(campaigns, runs)
    texts = {
        "report.md": markdown(title, intro, found),
        "report.html": page(title, " ".join([intro, note]).strip(), found, pictures),
    }
    for name, text in texts.items():
        write_file(out / name, text.encode())
    return [out / name for name in texts]


def introduction(campaigns: pd.DataFrame, provenance: Mapping[str, Any]) -> str:
    """What was compared, in sentences."""
    counts = campaigns["status"].value_counts().to_dict()
    ended = ", ".join(f"{count} {str(status).replace('_', ' ')}" for status, count in counts.items())
    worlds = resample(campaigns) if comparable(campaigns) else None
    common = (
        " No world was finished by every tuner."
        if worlds is None
        else f" {worlds.worlds} worlds were finished by every tuner."
    )
    left = f" {worlds.left_out} others are left out of comparisons." if worlds and worlds.left_out else ""
    hours, count = campaigns["gpu_hours_spent"].sum(), campaigns["scenario"].nunique()
    scenarios = "1 scenario" if count == 1 else f"{count} scenarios"
    return (
        f"All figures are simulated. {len(campaigns)} campaigns of {campaigns['tuner'].nunique()} tuners on "
        f"{scenarios} ({ended}); {hours:,.0f} GPU-hours simulated.{common}{left} "
        "Every tuner met the same worlds with the same recipe, space, budget, first runs, final measurement and gate. "
        "Intervals hold at 95 % and come from resampling worlds. "
        f"Version {provenance['version']}, commit {provenance['commit'] or 'not known'}, {provenance['date']}, "
        f"{provenance['machine']}."
    )


def tables(campaigns: pd.DataFrame) -> list[Table]:
    """Every table of a study; with several scenarios one summary each besides the one over all."""
    if not comparable(campaigns):
        return [failures(campaigns)]
    found = [summary_table("All scenarios", campaigns)]
    if campaigns["scenario"].nunique() > 1:
        found += [summary_table(str(name), part) for name, part in campaigns.groupby("scenario") if comparable(part)]
    if campaigns["tuner"].nunique() > 1:
        best = str(ranking(campaigns)["tuner"].iloc[0])
        found += [ranking_table(campaigns), paired_table(campaigns, best)]
    found += [safety_table(campaigns), failures(campaigns)]
    return [table for table in found if table.rows]


def summary_table(title: str, campaigns: pd.DataFrame) -> Table:
    """Gain, regret and costs by tuner."""
    rows = [
        [
            row["tuner"],
            f"{row['gain_pct']:+.1f}",
            f"{row['gain_low']:+.1f} … {row['gain_high']:+.1f}",
            f"{row['best_pct']:+.1f}",
            _figure(row["regret_pct"], 1),
            f"{row['kept_baseline_pct']:.0f}",
            _figure(row["gpu_hours_to_95_x"], 1),
            f"{row['lost_to_failures_pct']:.0f}",
            f"{row['runs']:.0f}",
            f"{row['tokens']:,.0f}",
            f"{row['usd_llm']:.2f}",
            f"{row['tuner_s']:.2f}",
        ]
        for _, row in summary(campaigns).iterrows()
    ]
    note = (
        "Mean re-measured gain with its interval, best campaign, mean regret in points against the best recipe of the "
        "world, campaigns that kept the recipe; GPU-hours to 95 % of the final gain (median, in runs of the baseline), "
        "share of the spent budget lost to failed runs; tokens (an estimate where roles are scripted) and dollars of "
        "language models; seconds of the tuner."
    )
    return _table(
        title,
        [
            "tuner",
            "gain %",
            "interval",
            "best %",
            "regret",
            "kept %",
            "to 95 %, x",
            "lost %",
            "runs",
            "tokens",
            "USD",
            "s",
        ],
        rows,
        note,
    )


def ranking_table(campaigns: pd.DataFrame) -> Table:
    """Ranks with their uncertainty."""
    rows = [
        [
            str(row["rank"]),
            row["tuner"],
            f"{row['mean']:+.1f}",
            f"{row['rank_low']} – {row['rank_high']}",
            f"{row['first_pct']:.0f}",
        ]
        for _, row in ranking(campaigns).iterrows()
    ]
    note = (
        "By mean gain; the interval of the rank, and in how many of 100 resamplings of the worlds the tuner is first."
    )
    return _table("Ranking", ["rank", "tuner", "gain %", "rank interval", "first, % of resamples"], rows, note)


def paired_table(campaigns: pd.DataFrame, reference: str) -> Table:
    """Differences from ``reference``, world by world."""
    rows = [
        [
            row["tuner"],
            f"{row['difference']:+.1f}",
            f"{row['low']:+.1f} … {row['high']:+.1f}",
            f"{row['wins']} / {row['losses']}",
            f"{row['p']:.2g}",
        ]
        for _, row in paired(campaigns, reference).iterrows()
    ]
    note = (
        f"Gain of {reference} less the gain of the tuner in the same world, in points; worlds won and lost; p of the "
        "signed-rank test, corrected by Holm."
    )
    header = ["tuner", "difference", "interval", "won / lost", "p"]
    return _table(f"{reference} against the others", header, rows, note)


def safety_table(campaigns: pd.DataFrame) -> Table:
    """How often what a tuner would ship trains another model, with and without the gate."""
    rows = [
        [
            row["tuner"],
            f"{row['shipped_faulty_pct']:.0f}",
            f"{row['gate_off_faulty_pct']:.0f}",
            f"{row['gate_stops']:.0f}",
            f"{row['failed']:.0f}",
        ]
        for _, row in summary(campaigns).sort_values("gate_off_faulty_pct", ascending=False, kind="stable").iterrows()
    ]
    note = (
        "Campaigns whose shipped recipe has an active defect in its world, those whose fastest measured recipe has one "
        "(what would be shipped without a gate), recipes the gate stopped, campaigns whose tuner failed."
    )
    header = ["tuner", "shipped faulty %", "fastest faulty %", "stopped by the gate", "tuner failed"]
    return _table("What the gate is worth", header, rows, note)


def failures(campaigns: pd.DataFrame) -> Table:
    """Campaigns that did not end by themselves, with the reason; equal ones together."""
    rows = campaigns[campaigns["status"] != "finished"]
    counts = rows.groupby(["scenario", "tuner", "status", "stop_reason"]).size()
    found = [[*map(str, key), str(count)] for key, count in counts.items() if isinstance(key, tuple)]
    return _table("Campaigns that failed", ["scenario", "tuner", "status", "reason", "campaigns"], found)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    words = {"tuner", "scenario", "status", "reason"}
    return Table(title, header, rows, note, frozenset(name for name in header if name not in words))


def _figure(value: float, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}"


def _pictures(campaigns: pd.DataFrame, runs: pd.DataFrame) -> tuple[dict[str, str], str]:
    """Captioned pictures, and the sentence that says why there are none."""
    if not comparable(campaigns):
        return {}, ""
    try:
        from attune_lab.study.plots import pictures

        drawn = pictures(campaigns, runs, list(summary(campaigns)["tuner"]))
    except ImportError:
        return {}, "Pictures need matplotlib: pip install 'attune-lab[plots]'."
    return {CAPTIONS[name]: svg for name, svg in drawn.items()}, ""
