"""The ablations: the agent without each of its rules, {agent, TPE} x {catalog, none}, and the repair rule for all."""

from __future__ import annotations

import pandas as pd

from attune_lab.report.tables import Table
from attune_lab.study.figures import by_world, paired, resample, signed_rank_p
from experiments.reproduce.bench import Bench, Section, has_tuners
from experiments.reproduce.claims import Claim

AGENT, REPAIR_RULE = "attune", "attune without retry-oom-with-recompute"
CROSSED = {
    ("agent", "catalog"): "attune",
    ("agent", "none"): "attune without use-catalog",
    ("TPE", "catalog"): "knowledge-bo",
    ("TPE", "none"): "optuna-tpe",
}

INTRODUCTION = (
    "Each rule of the agent is switched off alone; the catalog is given to and taken from the agent and TPE; every "
    "tuner runs with and without the rule that retries an out-of-memory layout with recomputation. All figures are "
    "simulated."
)


def reproduce(bench: Bench) -> Section:
    """The ablation tables."""
    rules = bench.study("rules").campaigns
    found = [rules_table(rules), crossed_table(rules)]
    if has_tuners("repair"):
        both = [bench.study(name).campaigns for name in ("tuners", "repair")]
        found.append(repair_table(pd.concat(both, ignore_index=True)))
    return Section("Ablations", INTRODUCTION, [repair_claim(rules)], found)


def rules_table(campaigns: pd.DataFrame) -> Table:
    """What the agent loses without each of its rules, world by world."""
    part = campaigns[campaigns["tuner"].str.startswith(AGENT)]
    rows = [
        [
            row["tuner"].removeprefix("attune without "),
            f"{row['difference']:+.2f}",
            f"{row['low']:+.2f} … {row['high']:+.2f}",
            f"{row['wins']} / {row['losses']}",
            f"{row['p']:.2g}",
        ]
        for _, row in paired(part, AGENT).sort_values("difference", ascending=False).iterrows()
    ]
    note = (
        "Gain of the agent less its gain without the rule, in points, paired by world; worlds in which the rule helped "
        "and hurt; p of the signed-rank test, corrected by Holm."
    )
    header = ["without", "worth, points", "interval", "helped / hurt", "p"]
    return Table("Search rules", header, rows, note, frozenset(header[1:]))


def crossed_table(campaigns: pd.DataFrame) -> Table:
    """Mean gains of agent and TPE with and without the catalog."""
    gains = resample(campaigns)
    low, high = gains.interval()
    cells = {
        tuner: f"{gains.mean[place]:+.1f} ({low[place]:+.1f} … {high[place]:+.1f})"
        for place, tuner in enumerate(gains.tuners)
    }
    rows = [[who, *(cells.get(CROSSED[who, what], "–") for what in ("catalog", "none"))] for who in ("agent", "TPE")]
    note = "Mean gain in percent with its interval. Without the catalog the agent tries neighbours of its best recipe."
    return Table("Agent or catalog?", ["", "with the catalog", "without"], rows, note)


def repair_table(campaigns: pd.DataFrame) -> Table:
    """Every tuner with the repair rule against itself without it."""
    worlds = by_world(campaigns, "gain_pct")
    rows = []
    for tuner in sorted(name for name in worlds.columns if f"{name}+repair" in worlds.columns):
        both = campaigns[campaigns["tuner"].isin([tuner, f"{tuner}+repair"])]
        found = paired(both, f"{tuner}+repair").iloc[0]
        pairs = worlds[[tuner, f"{tuner}+repair"]].dropna()
        p = signed_rank_p((pairs[f"{tuner}+repair"] - pairs[tuner]).to_numpy())
        means = resample(both).mean
        rows.append(
            [
                tuner,
                f"{means[0]:+.1f}",
                f"{means[1]:+.1f}",
                f"{found['difference']:+.1f}",
                f"{found['low']:+.1f} … {found['high']:+.1f}",
                f"{found['wins']} / {found['losses']}",
                f"{p:.2g}",
            ]
        )
    note = (
        "Mean gain without and with the rule, the difference in points paired by world, worlds it helped and hurt, p."
    )
    header = ["tuner", "without %", "with %", "difference", "interval", "helped / hurt", "p"]
    return Table("Out-of-memory repair for every tuner", header, rows, note, frozenset(header[1:]))


def repair_claim(campaigns: pd.DataFrame) -> Claim:
    """Whether the best campaigns rest on the repair rule."""
    worlds = by_world(campaigns[campaigns["tuner"].isin([AGENT, REPAIR_RULE])], "gain_pct").dropna()
    best = worlds.groupby(level="scenario").max()
    found = paired(campaigns[campaigns["tuner"].isin([AGENT, REPAIR_RULE])], AGENT).iloc[0]
    ours = (
        f"best campaign {best[AGENT].mean():+.1f} % with the rule, {best[REPAIR_RULE].mean():+.1f} % without; on "
        f"average {found['difference']:+.1f} points ({found['low']:+.1f} … {found['high']:+.1f})"
    )
    verdict = "agrees" if found["low"] > 0 else "not seen" if found["high"] >= 0 else "disagrees"
    why = (
        "The agent checks predicted memory before it spends, so few of its layouts run out of memory at all; the rule "
        "matters as much as that prediction errs."
    )
    return Claim(
        "repair rule",
        "the best campaigns rest on retrying an out-of-memory layout with recomputation",
        ours,
        verdict,
        why,
    )
