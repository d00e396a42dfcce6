"""Sensitivity: do the conclusions hold when worlds are harsher, or the accelerator is another?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from attune_lab.report.tables import Table
from attune_lab.study.figures import resample, stability
from experiments.reproduce.bench import Bench, Section, has_tuners

USUAL = "as usual"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    USUAL: {},
    "physics twice as uncertain": {"conditions": {"physics": 2, "residuals": 2}},
    "three times the noise": {"conditions": {"noise": 3}},
    "ten times the failures": {"conditions": {"failures": 10}},
    "three times the hidden defects": {"conditions": {"defects": 3}},
    "all of these": {"conditions": {"physics": 2, "residuals": 2, "noise": 3, "failures": 10, "defects": 3}},
    "B200": {"clusters": ["64xB200-SXM-180GB"]},
    "B300": {"clusters": ["64xB300-SXM-288GB"]},
}

INTRODUCTION = (
    "The same tuners in harsher worlds and on other accelerators. All figures are simulated: mean re-measured gain in "
    "percent, and the order of the tuners."
)


def reproduce(bench: Bench) -> Section:
    """The sensitivity table."""
    frames = {
        name: bench.study("sensitivity", label=f"sensitivity-{number}", **changes).campaigns
        for number, (name, changes) in enumerate(VARIANTS.items())
    }
    found = [table(frames)]
    if has_tuners("stability"):
        found.append(order_table(bench.study("stability").campaigns))
    return Section("Sensitivity", INTRODUCTION, [], found)


def table(frames: Mapping[str, pd.DataFrame]) -> Table:
    """One row per variant: mean gains, and the rank correlation of the tuners with the usual worlds."""
    from scipy.stats import spearmanr

    usual = resample(frames[USUAL])
    order = [usual.tuners[place] for place in np.argsort(-usual.mean, kind="stable")]
    rows = []
    for name, campaigns in frames.items():
        gains = resample(campaigns)
        means = dict(zip(gains.tuners, gains.mean, strict=True))
        low, high = gains.interval()
        half = dict(zip(gains.tuners, (high - low) / 2, strict=True))
        before = dict(zip(usual.tuners, usual.mean, strict=True))
        agreement = spearmanr([means[t] for t in order], [before[t] for t in order]) if len(order) > 1 else None
        kept = f"{agreement.statistic:.2f}" if agreement else "–"
        first = max(means, key=lambda tuner: means[tuner])
        rows.append([name, *(f"{means[t]:+.1f} ± {half[t]:.1f}" for t in order), first, kept])
    note = (
        "Half-widths of the intervals at 95 %. Last: the first tuner, and Spearman's correlation of the tuners' means "
        "with those of the usual worlds: 1 is the same order."
    )
    return Table(
        "Harsher worlds and other accelerators", ["worlds", *order, "first", "order kept"], rows, note, frozenset(order)
    )


def order_table(campaigns: pd.DataFrame) -> Table:
    """The order of the leading tuners from a third of the worlds and from all of them."""
    many = int(campaigns.groupby("scenario")["world"].nunique().min())
    found = stability(campaigns, max(many // 3, 1), many)
    rows = [
        [str(row["worlds"]), ", ".join(row["top"]), f"{row['width']:.1f}", f"{row['expected']:.1f}"]
        for _, row in found.iterrows()
    ]
    note = (
        "The first three of the leading tuners, the mean width of their intervals in points, and the width that the "
        "square root of the number of worlds lets expect."
    )
    header = ["worlds", "first three", "width", "expected"]
    return Table("Does the order stand in more worlds?", header, rows, note, frozenset(["worlds", "width", "expected"]))
