"""Draws by hash: the published generator's numbers, a normal distribution, and no trace of the codes in it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.draws import LIMIT, key, mixed, normals, row_codes

KEY = key(7, "test")
CODES = np.arange(200_000, dtype=np.uint64)


def test_codes_are_mixed_as_splitmix64_does():
    """The first outputs of SplitMix64 from state 0, as in Vigna's splitmix64.c and Java's SplittableRandom."""
    states = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(n) for n in mixed(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_draws_have_a_truncated_normal_distribution():
    drawn = normals(KEY, CODES)
    expected = stats.truncnorm(-LIMIT, LIMIT)
    assert np.abs(drawn).max() <= LIMIT
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(expected.std(), rel=4 / np.sqrt(2 * drawn.size))
    assert stats.kstest(drawn, expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("step", [1, 2, 8, 1 << 20, 1 << 40])
def test_neighbouring_codes_are_independent(step):
    drawn = normals(KEY, CODES), normals(KEY, CODES + np.uint64(step))
    for function in (np.asarray, np.abs, np.square):
        assert abs(np.corrcoef(function(drawn[0]), function(drawn[1]))[0, 1]) < 4.5 / np.sqrt(CODES.size)


def test_keys_are_independent_of_each_other():
    keys = np.array([key(seed, "test") for seed in range(40)])
    correlations = np.corrcoef(normals(keys[:, None], CODES[:20_000]))[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)
    assert stats.kstest(normals(keys, CODES[:1]), "norm").pvalue > 0.01


def test_the_bits_of_floating_point_numbers_make_codes_too():
    drawn = normals(KEY, np.arange(100_000, dtype=np.float64).view(np.uint64))
    assert stats.kstest(drawn, stats.truncnorm(-LIMIT, LIMIT).cdf).pvalue > 0.01


def test_rows_of_small_numbers_have_codes_of_their_own():
    rows = np.stack(np.meshgrid(*[np.arange(8)] * 6), axis=-1).reshape(-1, 6)
    assert np.unique(row_codes(rows)).size == len(rows)
    drawn = normals(KEY, row_codes(rows)).reshape([8] * 6)
    for axis in range(6):
        ahead, behind = np.moveaxis(drawn, axis, 0)[1:].ravel(), np.moveaxis(drawn, axis, 0)[:-1].ravel()
        assert abs(np.corrcoef(ahead, behind)[0, 1]) < 4.5 / np.sqrt(ahead.size)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(0, 5))
def test_zeros_at_the_end_of_a_row_change_nothing(row, zeros):
    assert row_codes(np.array([row])) == row_codes(np.array([row + [0] * zeros]))
