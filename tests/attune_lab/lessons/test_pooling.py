"""The statistics behind evidence, against independent calculations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.lessons.pooling import PRIOR_SD, PRIOR_SPREAD, failure_chance, pool, predict

gains = st.floats(-1, 1)
ses = st.floats(0.001, 0.2)


def test_one_place_is_its_own_mean() -> None:
    pooled = pool([0.1, 0.3], [0.02, 0.02], ["a", "a"])
    assert pooled.mean == pytest.approx(0.2)
    assert pooled.places == 1
    assert pooled.spread == pytest.approx(PRIOR_SPREAD)
    assert pooled.mean_sd == pytest.approx(math.hypot(0.02 / math.sqrt(2), PRIOR_SPREAD))


def test_many_places_recover_mean_and_spread() -> None:
    rng = np.random.default_rng(0)
    n, spread, se = 2000, 0.06, 0.02
    values = 0.1 + rng.normal(0, spread, n) + rng.normal(0, se, n)
    pooled = pool(values, [se] * n, range(n))
    assert pooled.mean == pytest.approx(0.1, abs=4 * spread / math.sqrt(n))
    assert pooled.spread == pytest.approx(spread, rel=0.1)
    assert pooled.mean_sd == pytest.approx(math.hypot(spread, se) / math.sqrt(n), rel=0.1)


@given(st.lists(st.tuples(gains, ses, st.integers(0, 3)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_observations_does_not_matter(rows: list[tuple[float, float, int]], rng) -> None:
    shuffled = rows.copy()
    rng.shuffle(shuffled)
    one, other = pool(*zip(*rows, strict=True)), pool(*zip(*shuffled, strict=True))
    assert one.mean == pytest.approx(other.mean, abs=1e-9)
    assert one.mean_sd == pytest.approx(other.mean_sd)
    assert one.spread == pytest.approx(other.spread)


@given(st.lists(st.tuples(gains, ses), min_size=1, max_size=8))
def test_the_mean_lies_among_the_values(rows: list[tuple[float, float]]) -> None:
    values = [value for value, _ in rows]
    pooled = pool(values, [se for _, se in rows], range(len(rows)))
    assert min(values) - 1e-9 <= pooled.mean <= max(values) + 1e-9


def test_a_prediction_from_one_cell_is_the_textbook_shrinkage() -> None:
    like, variance = 0.6, 0.03**2
    mean, sd = predict(np.array([0.1]), np.array([variance]), np.array([[1.0]]), np.array([like]))
    weight = PRIOR_SD**2 / (PRIOR_SD**2 + variance)
    assert mean == pytest.approx(like * weight * 0.1)
    assert sd == pytest.approx(PRIOR_SD * math.sqrt(1 - like**2 * weight))


def test_a_prediction_agrees_with_conditioning_a_sample() -> None:
    rng = np.random.default_rng(1)
    among, to = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([0.7, 0.4])
    joint = PRIOR_SD**2 * np.block([[np.ones((1, 1)), to[None, :]], [to[:, None], among]])
    drawn = rng.multivariate_normal(np.zeros(3), joint, 400_000)
    errors = rng.normal(0, 0.02, (400_000, 2))
    observed = drawn[:, 1:] + errors
    coefficients, *_ = np.linalg.lstsq(observed, drawn[:, 0], rcond=None)
    means = np.array([0.08, -0.03])
    mean, sd = predict(means, np.full(2, 0.02**2), among, to)
    assert mean == pytest.approx(coefficients @ means, abs=2e-3)
    assert sd == pytest.approx(np.std(drawn[:, 0] - observed @ coefficients), rel=0.01)


@given(st.lists(st.booleans(), max_size=30))
def test_failures_follow_the_beta_rule(tries: list[bool]) -> None:
    chance = failure_chance((sum(tries), len(tries)), (0, 0))
    assert chance == pytest.approx((0.2 + sum(tries)) / (4 + len(tries)))


def test_similar_moves_never_outvote_a_moves_own_failures() -> None:
    assert failure_chance((4, 4), (0, 100_000)) > 0.45
