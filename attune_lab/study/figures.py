"""What the campaigns of a study say of its tuners: gains with intervals, paired differences, a ranking.

Every figure rests on the frame of campaigns (docs/studies.md lists its columns). The tuners of a study meet the same
worlds, so worlds are what is resampled, all tuners together: one bootstrap gives the interval of a mean, of a
difference between two tuners, and of a rank. Scenarios weigh alike, whatever number of worlds each has.

Shape letters in this file: W = worlds of a scenario, T = tuners, R = resamples.

**Source:** percentile bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; paired
signed ranks: Wilcoxon, Biometrics Bulletin 1 (1945) 80; Holm, Scandinavian Journal of Statistics 6 (1979) 65.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 4000
LEVEL = 0.95

JUDGED = ("finished", "tuner_failed", "hung", "died")
"""Campaigns with these statuses shipped something, if only the baseline; others say nothing of their tuner."""


@dataclass(frozen=True)
class Resampled:
    """Means of one figure over worlds, and over resampled worlds.

    Attributes:
        tuners: labels, in the order of the columns.
        mean: shape (T,).
        draws: means over resampled worlds, shape (R, T).
        worlds: worlds that every tuner finished, all scenarios together.
        left_out: worlds that some tuner did not finish.
    """

    tuners: tuple[str, ...]
    mean: Floats
    draws: Floats
    worlds: int
    left_out: int

    def interval(self, values: Floats | None = None) -> tuple[Floats, Floats]:
        """Lower and upper ends of the interval of the means, or of other figures of the draws, shape (T,) each."""
        tail = 100 * (1 - LEVEL) / 2
        low, high = np.percentile(self.draws if values is None else values, [tail, 100 - tail], axis=0)
        return low, high

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of each tuner in each draw, 1 is the largest mean, shape (R, T)."""
        return np.argsort(np.argsort(-self.draws, axis=1, kind="stable"), axis=1) + 1


def judged(campaigns: pd.DataFrame) -> pd.DataFrame:
    """The campaigns that say something of their tuner."""
    return campaigns[campaigns["status"].isin(JUDGED)]


def comparable(campaigns: pd.DataFrame) -> bool:
    """Whether some world was finished by every tuner; without one, no figure here compares them."""
    return not by_world(campaigns, "gain_pct").dropna().empty


def by_world(campaigns: pd.DataFrame, figure: str) -> pd.DataFrame:
    """A figure with a row for every (scenario, world) and a column for every tuner; nan where there is none."""
    rows = judged(campaigns)
    return rows.pivot(index=["scenario", "world"], columns="tuner", values=figure).astype(float)


def resample(campaigns: pd.DataFrame, figure: str = "gain_pct", *, draws: int = RESAMPLES, seed: int = 0) -> Resampled:
    """Means of ``figure`` by tuner and their bootstrap over worlds; worlds that some tuner lacks are left out.

    Raises:
        ValueError: no world that every tuner finished.
    """
    table = by_world(campaigns, figure)
    whole = table.dropna()
    if whole.empty:
        raise ValueError("no world was finished by every tuner")
    rng = np.random.default_rng(seed)
    means, resampled = [], []
    for _, block in whole.groupby(level="scenario", sort=True):
        values = block.to_numpy()  # (W, T)
        count = len(values)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=draws) / count
        means.append(values.mean(axis=0))
        resampled.append(weights @ values)
    return Resampled(
        tuple(map(str, whole.columns)),
        np.mean(means, axis=0),
        np.mean(resampled, axis=0),
        len(whole),
        len(table) - len(whole),
    )


def summary(campaigns: pd.DataFrame) -> pd.DataFrame:
    """One row per tuner, best mean gain first: gain and regret with intervals, costs, failures, faults.

    ``gain_pct`` is the re-measured gain a tuner is credited with. ``failed`` counts campaigns whose tuner raised, hung
    or died. Shares are of the tuner's campaigns, in percent; ``gpu_hours_to_95_x`` is a median in runs of the baseline.
    """
    rows = judged(campaigns)
    gains = resample(campaigns)
    low, high = gains.interval()
    found = pd.DataFrame({"tuner": gains.tuners, "gain_pct": gains.mean, "gain_low": low, "gain_high": high})
    grouped = rows.groupby("tuner")
    found = found.set_index("tuner").assign(
        best_pct=grouped["gain_pct"].max(),
        median_pct=grouped["gain_pct"].median(),
        kept_baseline_pct=100 * grouped["kept_baseline"].mean(),
        regret_pct=grouped["regret_pct"].mean(),
        gpu_hours_to_95_x=(rows["gpu_hours_to_95"] / rows["run_cost_gpu_hours"]).groupby(rows["tuner"]).median(),
        budget_used_pct=100 * (rows["gpu_hours_spent"] / rows["gpu_hours_budget"]).groupby(rows["tuner"]).mean(),
        lost_to_failures_pct=100 * grouped["share_failed"].mean(),
        runs=grouped["runs"].mean(),
        failed=(rows["status"] != "finished").groupby(rows["tuner"]).sum(),
        shipped_faulty_pct=100 * grouped["shipped_faulty"].mean(),
        gate_off_faulty_pct=100 * grouped["best_searched_faulty"].mean(),
        gate_stops=grouped["gate_stops"].sum(),
        tokens=(rows["input_tokens"] + rows["output_tokens"]).groupby(rows["tuner"]).mean(),
        usd_llm=grouped["usd_llm"].mean(),
        tuner_s=grouped["tuner_s"].mean(),
        campaigns=grouped.size(),
    )
    return found.sort_values("gain_pct", ascending=False, kind="stable").reset_index()


def paired(campaigns: pd.DataFrame, reference: str, figure: str = "gain_pct") -> pd.DataFrame:
    """Every other tuner against ``reference``, world by world, in the order of the difference.

    Columns: ``tuner``, ``difference`` (the reference's mean less the tuner's, in points), ``low``, ``high``, ``wins``
    and ``losses`` of the reference, and ``p`` of the signed-rank test, corrected by Holm for all the tuners compared.

    Raises:
        ValueError: no such tuner, or no common world.
    """
    gains = resample(campaigns, figure)
    if reference not in gains.tuners:
        raise ValueError(f"no tuner called {reference} in this study; it has {', '.join(gains.tuners)}")
    place = gains.tuners.index(reference)
    differences = gains.draws[:, [place]] - gains.draws
    low, high = gains.interval(differences)
    whole = by_world(campaigns, figure).dropna()
    rows = []
    for index, tuner in enumerate(gains.tuners):
        if index != place:
            gaps = (whole[reference] - whole[tuner]).to_numpy()
            rows.append(
                {
                    "tuner": tuner,
                    "difference": gains.mean[place] - gains.mean[index],
                    "low": low[index],
                    "high": high[index],
                    "wins": int((gaps > 0).sum()),
                    "losses": int((gaps < 0).sum()),
                    "p": signed_rank_p(gaps),
                }
            )
    found = pd.DataFrame(rows, columns=["tuner", "difference", "low", "high", "wins", "losses", "p"])
    found["p"] = holm(found["p"].to_list())
    return found.sort_values("difference", kind="stable").reset_index(drop=True)


def ranking(campaigns: pd.DataFrame, figure: str = "gain_pct") -> pd.DataFrame:
    """Tuners by mean, with the interval of the rank and the chance of being first (percent) over resampled worlds."""
    gains = resample(campaigns, figure)
    ranks = gains.ranks
    low, high = gains.interval(ranks.astype(np.float64))
    found = pd.DataFrame(
        {
            "tuner": gains.tuners,
            "mean": gains.mean,
            "rank_low": np.floor(low).astype(int),
            "rank_high": np.ceil(high).astype(int),
            "first_pct": 100 * (ranks == 1).mean(axis=0),
        }
    )
    found = found.sort_values("mean", ascending=False, kind="stable").reset_index(drop=True)
    found.insert(1, "rank", np.arange(1, len(found) + 1))
    return found


def signed_rank_p(differences: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; 1 where no pair differs."""
    from scipy.stats import wilcoxon

    moved = differences[differences != 0]
    return float(wilcoxon(moved).pvalue) if moved.size else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of tests, corrected by Holm's step-down rule, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for step, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[index]))
        corrected[index] = largest
    return corrected


def best_so_far(runs: pd.DataFrame, campaigns: pd.DataFrame, shares: Floats) -> dict[str, Floats]:
    """Best gain measured so far, percent, at shares of the budget spent: tuner -> shape (campaigns, shares).

    The gain is 0 until a run beats the baseline: whoever stops there ships the baseline.
    """
    keys = ["scenario", "tuner", "world"]
    budgets = judged(campaigns).set_index(keys)["gpu_hours_budget"]
    search = runs[runs["purpose"] == "search"].sort_values("gpu_hours_before", kind="stable")
    walked = dict(list(search.groupby(keys)))
    curves: dict[str, list[Floats]] = {}
    for key, budget in budgets.items():
        assert isinstance(key, tuple)
        curve = np.zeros(len(shares))
        if (mine := walked.get(key)) is not None:
            ended = ((mine["gpu_hours_before"] + mine["gpu_hours"]) / budget).to_numpy()
            gains = np.maximum.accumulate(np.nan_to_num(mine["gain_pct"].to_numpy(dtype=float), nan=0.0))
            place = np.searchsorted(ended, shares, side="right") - 1
            curve = np.where(place >= 0, np.maximum(gains[np.maximum(place, 0)], 0.0), 0.0)
        curves.setdefault(key[1], []).append(curve)
    return {tuner: np.array(found) for tuner, found in sorted(curves.items())}


def stability(campaigns: pd.DataFrame, few: int, many: int, *, top: int = 3) -> pd.DataFrame:
    """The ranking from the first ``few`` worlds of each scenario against that from the first ``many``.

    Columns: ``worlds``, ``top`` (the first tuners, best first), ``width`` (mean width of the tuners' intervals, points)
    and ``expected`` (the width at ``few`` shrunk by the square root of the number of worlds).
    """
    rows = []
    for count in (few, many):
        part = campaigns[campaigns.groupby("scenario")["world"].rank(method="dense") <= count]
        gains = resample(part)
        low, high = gains.interval()
        order = np.argsort(-gains.mean, kind="stable")[:top]
        rows.append({"worlds": count, "top": [gains.tuners[i] for i in order], "width": float((high - low).mean())})
    found = pd.DataFrame(rows)
    found["expected"] = found["width"].iloc[0] * np.array([1.0, math.sqrt(few / many)])
    return found
