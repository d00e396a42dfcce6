"""Does learning help? The agent with and without what campaigns on other models, in other worlds, showed."""

from __future__ import annotations

import pandas as pd

from attune_lab.lessons.learn import Learning, find_campaigns, learn_from
from attune_lab.lessons.records import update_records
from attune_lab.report.tables import Table
from attune_lab.study.figures import judged, paired, resample
from experiments.reproduce.bench import Bench, Section, has_tuners

AGENT, TAUGHT = "attune", "attune, taught"

INTRODUCTION = (
    "The agent tunes five other models in worlds of their own; what those campaigns show of each lever is folded into "
    "a file of evidence, and the agent tunes the two models of the study with that file and without. The study "
    "refuses evidence of a model it tunes. All figures are simulated."
)


def reproduce(bench: Bench) -> Section:
    """The table of learning; without the agent it is empty."""
    if not has_tuners("school"):
        return Section("Learning", INTRODUCTION, [], [])
    bench.study("school")
    learning = learn_from(find_campaigns(bench.folder("school")))
    evidence = bench.out / ("quick-learnt.json" if bench.quick else "learnt.json")
    update_records(evidence, lambda _: learning.records)
    taught = {"name": AGENT, "label": TAUGHT, "options": {"lessons": str(evidence.resolve())}}
    campaigns = bench.study("learning", tuners=[AGENT, taught]).campaigns
    return Section("Learning", INTRODUCTION, [], [sources_table(learning), learning_table(campaigns)])


def sources_table(learning: Learning) -> Table:
    """What was learnt from: campaigns and observations by model."""
    rows = [
        [
            model,
            str(len(campaigns)),
            str(sum(len(campaign.observations) for campaign in campaigns)),
            str(sum(seen.outcome == "gain" for campaign in campaigns for seen in campaign.observations)),
            str(sum(seen.measured is None for campaign in campaigns for seen in campaign.observations)),
        ]
        for model, campaigns in learning.records.by_model().items()
    ]
    header = ["model", "campaigns", "levers tried", "gained", "failed or rejected"]
    note = "A lever is tried once for each recipe that ran; levers are those of the agent, seeds from 100 on."
    return Table("What was learnt from", header, rows, note, frozenset(header[1:]))


def learning_table(campaigns: pd.DataFrame) -> Table:
    """The agent with and without evidence, world by world."""
    rows = []
    for model, part in judged(campaigns).groupby("recipe"):
        gains = resample(part)
        low, high = gains.interval()
        cells = {
            tuner: f"{gains.mean[i]:+.1f} ({low[i]:+.1f} … {high[i]:+.1f})" for i, tuner in enumerate(gains.tuners)
        }
        found = paired(part, TAUGHT).iloc[0]
        spent = part.groupby("tuner")["gpu_hours_spent"].mean()
        rows.append(
            [
                str(model),
                cells[AGENT],
                cells[TAUGHT],
                f"{found['difference']:+.2f}",
                f"{found['low']:+.2f} … {found['high']:+.2f}",
                f"{found['wins']} / {found['losses']}",
                f"{found['p']:.2g}",
                f"{spent[TAUGHT] / spent[AGENT]:.2f}",
            ]
        )
    header = ["model", "untaught %", "taught %", "difference", "interval", "helped / hurt", "p", "GPU-hours, ratio"]
    note = (
        "Mean gain with its interval; the difference in points, paired by world; worlds in which the evidence helped "
        "and hurt; p of the signed-rank test."
    )
    return Table("With and without what others showed", header, rows, note, frozenset(header[1:]))
