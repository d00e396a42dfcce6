"""Pipeline layout strings, against examples of the stack's own documentation and a round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.recipe.layouts import (
    layers_per_rank,
    layout_count,
    splits_evenly,
    stages,
    stages_with,
    symbols,
    virtual_stages,
)

DEEPSEEK_V3 = "Et*3|(tt|)*29,m|L"
"""61 layers on 16 x 2 virtual stages: NVIDIA/Megatron-LM docs, pipeline-model-parallel-layout."""


def test_groups_expand_before_boundaries() -> None:
    assert virtual_stages("E,t*3|(t|)*2L") == ("Ettt", "t", "t", "L")
    assert virtual_stages("E|t||L") == ("E", "t", "", "L")
    assert virtual_stages("E(t*2|)*2(t|m)*1L") == ("Ett", "tt", "t", "mL")


def test_deepseek_v3_layout() -> None:
    assert layout_count(DEEPSEEK_V3, "t") == 61
    assert stages(DEEPSEEK_V3) == 32
    assert stages_with(DEEPSEEK_V3, "m") == (30,)
    assert sum(layers_per_rank(DEEPSEEK_V3, 16)) == 61
    assert layers_per_rank(DEEPSEEK_V3, 16) == (5, *[4] * 13, 2, 2)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_round_trip_through_counts(counts: list[int]) -> None:
    text = "E" + "|".join("t" * n if n < 2 else f"t*{n}" for n in counts) + "L"
    assert [stage.count("t") for stage in virtual_stages(text)] == counts
    assert symbols(text) == "E" + "t" * sum(counts) + "L"
    assert layers_per_rank(text, 1) == (sum(counts),)


@pytest.mark.parametrize("text", ["Ex|L", "E(t|L", "Et**2L", "E(t|)*L", "E" + "(" + "t*9999" + ")*9999L"])
def test_refuses_bad_strings(text: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        virtual_stages(text)


def test_refuses_stages_that_do_not_deal_out() -> None:
    with pytest.raises(ValueError, match="no multiple of 2"):
        layers_per_rank("Et|t|tL", 2)


@given(st.integers(-4, 40), st.integers(-2, 8))
def test_splits_evenly(layers: int, parts: int) -> None:
    legal = layers == 0 if parts == 0 else parts > 0 and layers in [parts * n for n in range(1, 41)]
    assert splits_evenly(layers, parts) is legal
