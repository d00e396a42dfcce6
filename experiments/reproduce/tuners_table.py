"""The tuners table: every tuner on two models, equal GPU-hours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attune_lab.study.figures import Resampled, judged, resample, summary
from attune_lab.study.report import CAPTIONS, tables
from experiments.reproduce.bench import Bench, Section
from experiments.reproduce.claims import Claim

AGENT = "attune"
NAMED = ("optico", "optuna-tpe", "optuna-gp", "skopt", "random")
"""What the paper compares with: OptiCo, Bayesian optimisation and random search."""

STATED = "more than 4 times the best alternative's gain at less than half its GPU-hours"

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
        gains = resample(part)
        others = [tuner for tuner in gains.tuners if tuner != AGENT]
        named = [tuner for tuner in NAMED if tuner in others]
        if AGENT not in gains.tuners:
            continue
        spent = part.groupby("tuner")["gpu_hours_spent"].mean()
        for whom, rivals in (("of OptiCo, BO and random search", named), ("of all tuners here", others)):
            if rivals:
                found.append(_against(str(model), gains, spent, rivals, whom))
    return found


def _against(model: str, gains: Resampled, spent: pd.Series[float], rivals: list[str], whom: str) -> Claim:
    """The agent's gain and spending as multiples of the best rival's; ``spent`` are mean GPU-hours by tuner."""
    low, high = gains.interval()
    row = {tuner: (gains.mean[i], f"{low[i]:+.1f} … {high[i]:+.1f}") for i, tuner in enumerate(gains.tuners)}
    best = max(rivals, key=lambda tuner: row[tuner][0])
    (ours, our_interval), (theirs, their_interval) = row[AGENT], row[best]
    ratio, hours = ours / theirs if theirs > 0 else np.inf, spent[AGENT] / spent[best]
    return Claim(
        f"{model}: attune against the best {whom}",
        STATED if model == "glm-4.5" else "(not in the abstract)",
        f"{ours:+.1f} % against {theirs:+.1f} % of {best}: {ratio:.1f} times, at {hours:.2f} of its GPU-hours",
        _verdict(ratio, hours) if model == "glm-4.5" else "ahead" if ratio > 1 else "behind",
        "The alternatives here are told legal points and failures, and many use the cost model; a strong baseline "
        f"leaves less of a lead (intervals {our_interval} and {their_interval}).",
    )


def _verdict(ratio: float, hours: float) -> str:
    """How a lead stands to the stated one."""
    if ratio > 4 and hours < 0.5:
        return "agrees"
    return "same direction" if ratio > 1 else "disagrees"
