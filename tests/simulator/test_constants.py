import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.constants import Prior
from simulator.physics import PRIORS, SOFTWARE

shifts = st.floats(-4, 4)


@given(st.floats(1e-6, 1e6), st.floats(0.01, 0.5), shifts)
def test_a_constant_moves_by_standard_deviations_of_its_logarithm(value, sd, by):
    prior = Prior(value, sd, "", "", math.inf)
    assert math.log(prior.moved(by) / value) == pytest.approx(sd * by, abs=1e-9)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.3), shifts)
def test_a_share_stays_one_and_moves_alike_near_its_value(value, sd, by):
    prior = Prior(value, sd, "", "", 1.0)
    assert 0 < prior.moved(by) < 1
    assert prior.moved(0) == pytest.approx(value)
    assert (prior.moved(1e-4) / value - 1) / 1e-4 == pytest.approx(sd, rel=1e-2)


def test_every_constant_says_what_it_is_and_where_it_comes_from():
    assert all(prior.what and prior.source and prior.value > 0 for prior in PRIORS.values())
    assert all(prior.value < prior.below for prior in PRIORS.values())
    assert set(PRIORS) >= SOFTWARE


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.3), st.sampled_from([1.0, math.inf]), shifts)
def test_the_slope_is_the_derivative_of_the_move(value, sd, below, by):
    prior = Prior(value, sd, "", "", below)
    here, there = prior.moved(by), prior.moved(by + 1e-5)
    assert prior.slope(here) == pytest.approx(math.log(there / here) / 1e-5, rel=1e-3, abs=1e-9)
