"""How layers are dealt out to pipeline stages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.job import cost_stage_layers, even_stage_layers


@given(st.integers(1, 64), st.integers(1, 16))
def test_even_stages_differ_by_one_layer_at_most(layers: int, pp: int) -> None:
    split = even_stage_layers(layers, np.array([pp]))[0]
    assert split.sum() == layers
    assert split.max() - split.min() <= 1


@given(st.integers(1, 64), st.integers(1, 16), st.floats(0.1, 8))
def test_stages_cut_by_cost_against_a_walk_over_the_layers(layers: int, pp: int, head: float) -> None:
    """A layer belongs to the stage in whose share of the summed costs it begins."""
    split, share = [0] * pp, (layers + head) / pp
    for layer in range(layers):
        split[min(int((layer + 1e-9) / share), pp - 1)] += 1
    assert cost_stage_layers(layers, np.array([pp]), head)[0].tolist() == split


def test_stages_cut_by_cost_in_a_batch() -> None:
    """A head of four layers: two stages of 16 layers take 10 and 6, eight have none left for the last two."""
    split = cost_stage_layers(16, np.array([1, 2, 8]), 4.0)
    assert split.tolist() == [[16, 0, 0, 0, 0, 0, 0, 0], [10, 6, 0, 0, 0, 0, 0, 0], [3, 2, 3, 2, 3, 2, 1, 0]]
