"""The tuners table: every tuner on two models, equal GPU-hours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attune_lab.study.figures import judged, resample, summary
from attune_lab.study.report import CAPTIONS, tables
from experiments.reproduce.bench import Bench, Section
from experiments.reproduce.claims import Claim

AGENT = "attune"
NAMED = ("optico", "optuna-tpe", "optuna-gp", "skopt", "random")
"""What the paper compares with: OptiCo, Bayesian optimisation and random search."""

INTRODUCTION = (
    "All tuners meet the same worlds with the same recipe, space, budget and gate. All figures are simulated; agents "
    "other than attune are played by scripted, rule-based roles unless a language model is asked for, so their rows "
    "show the arrangement, not what a language model would have proposed."
)


def reproduce(bench: Bench) -> Section:
    """The tuners table."""
    from attune_lab.study.plots import pictures

    frames = bench.study("tuners")
    campaigns = frames.campaigns
    drawn = pictures(campaigns, frames.runs, list(summary(campaigns)["tuner"]))
    captions = {CAPTIONS[name]: svg for name, svg in drawn.items()}
    return Section(
        "Tuners table: equal GPU-hours on two models", INTRODUCTION, claims(campaigns), tables(campaigns), captions
    )


def claims(campaigns: pd.DataFrame) -> list[Claim]:
    """The abstract's statements on tuners beside ours."""
    found = []
    for model, part in judged(campaigns).groupby("recipe"):
        gains = dict(zip(resample(part).tuners, resample(part).mean, strict=True))
        if AGENT not in gains:
            continue
        others = [tuner for tuner in gains if tuner != AGENT]
        named = [tuner for tuner in NAMED if tuner in gains]
        if named:
            found.append(_against(str(model), part, gains, named, "of OptiCo, BO and random search"))
        if others:
            found.append(_against(str(model), part, gains, others, "of all tuners here"))
    return found


def _against(model: str, campaigns: pd.DataFrame, gains: dict[str, float], others: list[str], whom: str) -> Claim:
    """The agent's gain and spending as multiples of the best alternative's."""
    best = max(others, key=lambda tuner: gains[tuner])
    ratio = gains[AGENT] / gains[best] if gains[best] > 0 else np.inf
    spent = campaigns.groupby("tuner")["gpu_hours_spent"].mean()
    hours = spent[AGENT] / spent[best]
    low, high = resample(campaigns[campaigns["tuner"].isin([AGENT, best])]).interval()
    both = f"{gains[AGENT]:+.1f} % against {gains[best]:+.1f} % of {best}"
    ours = f"{both}: {ratio:.1f} times, at {hours:.2f} of its GPU-hours"
    stated = model == "glm-4.5"
    theirs = (
        "more than 4 times the best alternative's gain at less than half its GPU-hours"
        if stated
        else "(not in the abstract)"
    )
    if ratio > 4 and hours < 0.5:
        verdict = "agrees"
    elif ratio > 1:
        verdict = "same direction"
    else:
        verdict = "disagrees"
    why = (
        "The alternatives here are told legal points and failures, and many use the cost model; a strong baseline "
        f"leaves less of a lead (intervals {low[0]:+.1f} … {high[0]:+.1f} and {low[1]:+.1f} … {high[1]:+.1f})."
    )
    return Claim(f"{model}: attune against the best {whom}", theirs, ours, verdict, why)
