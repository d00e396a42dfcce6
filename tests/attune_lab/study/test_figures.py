"""Statistics of a study, against hand-worked cases, scipy and simulated truth."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attune_lab.study import figures


def frame(gains: dict[str, list[float]], scenario: str = "a", **columns: object) -> pd.DataFrame:
    """Campaigns with these gains, world by world."""
    rows = [
        {
            "scenario": scenario, "tuner": tuner, "world": world, "status": "finished", "gain_pct": gain,
            "kept_baseline": gain == 0, "regret_pct": 30 - gain, "gpu_hours_to_95": 50.0, "run_cost_gpu_hours": 10.0,
            "gpu_hours_spent": 380.0, "gpu_hours_budget": 400.0, "share_failed": 0.1, "runs": 40,
            "shipped_faulty": False, "best_searched_faulty": world == 0, "gate_stops": 1, "input_tokens": 10.0,
            "output_tokens": 1.0, "usd_llm": 0.0, "tuner_s": 0.5, **columns,
        }
        for tuner, series in gains.items()
        for world, gain in enumerate(series)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_mean_weighs_scenarios_alike() -> None:
    both = pd.concat([frame({"x": [1.0, 3.0]}), frame({"x": [10.0] * 8}, scenario="b")])
    assert figures.resample(both).mean == pytest.approx([6.0])


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        low, high = figures.resample(frame({"x": list(rng.normal(5, 2, 30))}), draws=400).interval()
        hits += low[0] <= 5 <= high[0]
    assert 0.88 <= hits / 300 <= 0.98


def test_the_interval_agrees_with_scipys_bootstrap() -> None:
    values = list(np.random.default_rng(2).gamma(2, 3, 40))
    low, high = figures.resample(frame({"x": values}), draws=20_000).interval()
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=3).confidence_interval
    assert (low[0], high[0]) == pytest.approx(tuple(theirs), rel=0.02)


def test_a_common_part_of_all_worlds_leaves_a_difference_certain() -> None:
    worlds = np.random.default_rng(3).normal(10, 5, 20)
    found = figures.paired(frame({"x": list(worlds), "y": list(worlds - 1)}), "x").iloc[0]
    assert (found["difference"], found["low"], found["high"]) == pytest.approx((1.0, 1.0, 1.0))
    assert (found["wins"], found["losses"]) == (20, 0)
    assert found["p"] < 1e-4


def test_a_world_that_a_tuner_lacks_is_left_out_for_all() -> None:
    rows = frame({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]})
    rows.loc[(rows.tuner == "y") & (rows.world == 2), "status"] = "environment"
    found = figures.resample(rows)
    assert (found.worlds, found.left_out) == (2, 1)
    assert found.mean == pytest.approx([1.5, 4.5])


def test_a_hung_tuner_is_judged_by_what_it_shipped() -> None:
    rows = frame({"x": [1.0, 2.0]})
    rows.loc[0, "status"] = "hung"
    table = figures.summary(rows)
    assert (table.loc[0, "gain_pct"], table.loc[0, "failed"]) == (1.5, 1)


def test_no_common_world_is_said_so() -> None:
    with pytest.raises(ValueError, match="no world"):
        figures.resample(frame({"x": [1.0]}, status="refused"))


def test_the_summary_puts_the_best_first_with_shares_in_percent() -> None:
    table = figures.summary(frame({"poor": [0.0, 2.0], "good": [10.0, 12.0]})).set_index("tuner")
    assert list(table.index) == ["good", "poor"]
    poor = table.loc["poor"]
    assert poor[["kept_baseline_pct", "regret_pct", "best_pct", "runs"]].to_list() == [50, 29, 2, 40]
    assert poor[["gpu_hours_to_95_x", "budget_used_pct", "lost_to_failures_pct"]].to_list() == pytest.approx(
        [5, 95, 10]
    )
    assert poor[["gate_off_faulty_pct", "gate_stops", "tokens"]].to_list() == [50, 2, 11]


def test_ranks_are_certain_when_one_always_wins_and_open_when_they_are_equal() -> None:
    table = figures.ranking(frame({"a": [9.0, 9.5], "b": [1.0, 2.0], "c": [2.0, 1.0]})).set_index("tuner")
    assert table.loc["a", ["rank", "rank_low", "rank_high", "first_pct"]].to_list() == [1, 1, 1, 100]
    assert table.loc["b", ["rank_low", "rank_high"]].to_list() == [2, 3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_as_worked_out_one_by_one(p_values: list[float]) -> None:
    found = figures.holm(p_values)
    for index, p in enumerate(p_values):  # by definition: largest of (m - #smaller) p over all p at most this one
        order = sorted(range(len(p_values)), key=lambda i: p_values[i])
        steps = [(len(p_values) - k) * p_values[i] for k, i in enumerate(order) if k <= order.index(index)]
        assert found[index] == pytest.approx(min(1.0, max(steps)))
        assert found[index] >= p


def test_the_signed_rank_test_is_scipys_and_says_nothing_of_ties() -> None:
    values = np.array([0.5, -0.2, 1.0, 2.0, 0.0])
    assert figures.signed_rank_p(values) == stats.wilcoxon(values[:4]).pvalue
    assert figures.signed_rank_p(np.zeros(5)) == 1.0


def runs_of(gains: list[float], tuner: str = "x", world: int = 0) -> pd.DataFrame:
    count = len(gains)
    return pd.DataFrame(
        {
            "scenario": "a", "tuner": tuner, "world": world, "purpose": "search", "gpu_hours": 10.0,
            "gpu_hours_before": 100.0 + 10.0 * np.arange(count), "gain_pct": gains,
        }
    )  # fmt: skip


def test_best_so_far_steps_up_when_a_run_has_ended() -> None:
    campaigns = frame({"x": [5.0]})
    curves = figures.best_so_far(
        runs_of([-3.0, float("nan"), 4.0, 2.0, 9.0]), campaigns, np.array([0.2, 0.3249, 0.325, 0.36, 0.375, 1.0])
    )
    assert curves["x"].tolist() == [[0, 0, 4, 4, 9, 9]]


def test_a_campaign_without_search_runs_stays_at_the_baseline() -> None:
    curves = figures.best_so_far(runs_of([1.0]).iloc[:0], frame({"x": [0.0]}), np.array([0.5, 1.0]))
    assert curves["x"].tolist() == [[0, 0]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-50, 100), min_size=1, max_size=30), st.integers(1, 60))
def test_best_so_far_never_falls(gains: list[float], points: int) -> None:
    curve = figures.best_so_far(runs_of(gains), frame({"x": [1.0]}), np.linspace(0, 1.2, points))["x"][0]
    assert all(a <= b for a, b in itertools.pairwise(curve))
    assert curve.max() <= max(0.0, *gains)


def test_more_worlds_shrink_the_intervals_as_expected() -> None:
    rng = np.random.default_rng(5)
    rows = frame({name: list(rng.normal(mean, 2, 80)) for name, mean in (("a", 9), ("b", 5), ("c", 1))})
    table = figures.stability(rows, 20, 80)
    assert table["top"].to_list() == [["a", "b", "c"]] * 2
    assert table["expected"].iloc[1] == pytest.approx(table["width"].iloc[0] / 2)
    assert table["width"].iloc[1] == pytest.approx(table["expected"].iloc[1], rel=0.3)
