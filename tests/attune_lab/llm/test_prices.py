"""What tokens cost, and what a ceiling makes of it."""

from __future__ import annotations

import math
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from attune_lab.llm.allowance import Allowance, Spent, bound
from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.prices import Price, price_of

TABLE = YAML(typ="safe").load(files("attune_lab").joinpath("data/llm_prices.yaml").read_text(encoding="utf-8"))
COUNTS = st.integers(0, 10**7)


def test_prices_have_a_source():
    assert all(source.startswith("platform.claude.com/docs/") for source in TABLE["sources"])


@pytest.mark.parametrize("model", TABLE["models"])
def test_prices_are_in_proportion(model):
    price = price_of(model)
    assert price.output == 5 * price.input
    assert price.cache_write == pytest.approx(1.25 * price.input), "the pricing page's multiplier for five minutes"
    assert price.cache_read <= 0.1 * price.input + 1e-9


def test_reading_and_writing_the_cache_are_priced_apart():
    price = Price(input=1.0, output=10.0, cache_write=100.0, cache_read=1000.0)
    assert price.usd(new=3, written=0, read=0, output=0) == pytest.approx(3e-6)
    assert price.usd(new=0, written=3, read=0, output=0) == pytest.approx(3e-4)
    assert price.usd(new=0, written=0, read=3, output=0) == pytest.approx(3e-3)
    assert price.usd(new=0, written=0, read=0, output=3) == pytest.approx(3e-5)
    assert price_of("no-such-model") is None


@given(st.sampled_from(sorted(TABLE["models"])), COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_bound_holds_however_the_cache_is_used(model, new, written, read, output):
    price = price_of(model)
    most = bound(price, new + written + read, output)
    assert most.usd >= price.usd(new=new, written=written, read=read, output=output) * (1 - 1e-12)
    assert most.tokens == new + written + read + output
    assert math.isnan(bound(None, new, output).usd)


@given(st.lists(st.tuples(COUNTS, COUNTS)), st.integers(1, 10**8))
def test_what_is_reserved_before_it_is_charged_never_overshoots(rows, ceiling):
    allowance = Allowance(tokens=ceiling)
    for asked, told in rows:
        most = Spent(asked, told)
        fits = allowance.spent.tokens + asked + told <= ceiling
        assert allowance.holds(most) == fits
        if fits:
            allowance.reserve(most)
            allowance.charge(most)
        else:
            with pytest.raises(AllowanceSpent):
                allowance.reserve(most)
    assert allowance.spent.tokens <= ceiling


def test_no_ceiling_holds_anything():
    most = Spent(10**12, 10**12, math.nan)
    Allowance().reserve(most)
    assert Allowance().holds(most)
