"""Frozen weights and packed samples: what fine-tuning changes of a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.compute import part_times
from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.models import model
from simulator.posterior import DEFAULT_PHYSICS
from simulator.step import simulate_step


def llama(**columns):
    return make_jobs(model("llama-3-8b"), parse_cluster("8xH100-SXM5-80GB"), **({"gbs": 32, "seq_len": 8192} | columns))


def test_frozen_matrices_cost_their_forward_pass_and_the_data_gradient():
    times = part_times(llama(frozen=[False, True]), DEFAULT_PHYSICS)
    for name, part in times.items():
        adapters = part.forward[1] - part.forward[0]
        assert part.wgrad[1] == 0
        assert part.backward[0] - part.backward[1] == pytest.approx(part.wgrad[0] - 1.5 * adapters)
        assert (adapters > 0) == (name == "attention")
        assert adapters < 0.2 * part.forward[0]


def test_frozen_matrices_have_neither_gradients_nor_optimizer_state():
    step = simulate_step(llama(frozen=[False, True]))
    assert step.breakdown_s["exposed_dp"][1] == 0
    assert step.breakdown_s["optimizer"][1] < 0.05 * step.breakdown_s["optimizer"][0]
    shares = step.peak_allocated_bytes[:, 0]
    parameters = 8.03e9
    saved = parameters * (4 + 12 / 8)
    assert shares[0] - shares[1] == pytest.approx(saved, rel=0.02)


@given(packed=st.integers(64, 8192))
def test_packing_saves_attention_alone(packed):
    times = part_times(llama(sample_len=[0, packed, 8192]), DEFAULT_PHYSICS)
    assert times["attention"].forward[1] <= times["attention"].forward[0]
    assert times["attention"].forward[2] == times["attention"].forward[0]
    assert np.ptp(times["mlp"].forward) == 0


@pytest.mark.parametrize(("part", "slower"), [("A100-SXM4-80GB", False), ("H100-SXM5-80GB", True)])
def test_ampere_kernels_are_slow_from_hopper_on(part, slower):
    jobs = make_jobs(
        model("llama-3-8b"), parse_cluster(f"8x{part}"), gbs=8, seq_len=8192, portable_attention=[False, True]
    )
    own, portable = part_times(jobs, DEFAULT_PHYSICS)["attention"].forward
    assert (portable > own) == slower
