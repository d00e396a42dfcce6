"""What older stacks do: attention without a fused kernel, unpadded vocabularies, hosts near the limit, traces."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import all_reduce_seconds, tensor_group
from simulator.compute import part_times
from simulator.compute.tally import tensor_launches
from simulator.hardware import parse_cluster
from simulator.job import Recompute, make_jobs
from simulator.kernels import memory_rate
from simulator.models import model
from simulator.posterior import DEFAULT_PHYSICS
from simulator.stages import part_counts, stage_times
from simulator.step import simulate_step

A100 = parse_cluster("8xA100-SXM4-80GB")


def gpt(**columns):
    return make_jobs(
        model("megatron-gpt-3.6b"), A100, **{"gbs": 64, "seq_len": 2048, "sequence_parallel": False} | columns
    )


@given(tp=st.sampled_from([1, 2, 4, 8]), mbs=st.integers(1, 16))
def test_scores_move_nine_bytes_through_memory(tp, mbs):
    """Softmax reads and writes 2 bytes, dropout too and a byte of mask, for each score of the whole square."""
    endless = replace(DEFAULT_PHYSICS, memory_eff=1e9)

    def moving(**columns):
        slow, fast = (part_times(gpt(tp=tp, mbs=mbs, **columns), p)["attention"] for p in (DEFAULT_PHYSICS, endless))
        return slow.forward[0] - fast.forward[0]

    scores = mbs * 32 / tp * 2048.0**2
    rate = memory_rate(A100.accelerator, DEFAULT_PHYSICS)
    assert moving(fused_attention=False) - moving() == pytest.approx(9 * scores / rate, rel=1e-6)


def test_the_fused_softmax_wants_a_multiple_of_four_matrices():
    """48 heads on 16 ranks: two sequences are six matrices, four are twelve (Megatron-LM fused_softmax.py)."""
    shape, cluster = model("megatron-gpt-18.4b"), parse_cluster("16xA100-SXM4-80GB")
    columns = {"gbs": 64, "seq_len": 2048, "tp": 16, "mbs": [2, 4], "sequence_parallel": False}
    times = [
        part_times(make_jobs(shape, cluster, **columns, fused_attention=on), DEFAULT_PHYSICS)["attention"].forward
        for on in (True, False)
    ]
    extra = times[1] - times[0]
    assert extra[0] > extra[1]
    assert times[0][0] < times[0][1]


@pytest.mark.parametrize(
    ("vocab", "tp", "odd"), [(50257, 1, True), (50258, 1, False), (50258, 2, True), (50304, 2, False)]
)
def test_an_odd_number_of_columns_slows_the_head(vocab, tp, odd):
    shape = replace(model("megatron-gpt-3.6b"), vocab=vocab)
    columns = {"gbs": 64, "seq_len": 2048, "mbs": 4, "tp": tp}
    head, padded = (
        part_times(make_jobs(s, A100, **columns), DEFAULT_PHYSICS)["head"].forward[0]
        for s in (shape, replace(shape, vocab=51200))
    )
    assert (head > 1.5 * padded) == odd


@given(launch_us=st.floats(0.0, 200.0), tp=st.sampled_from([1, 2, 8]), mbs=st.integers(1, 8))
def test_host_and_accelerator_wait_for_each_other_near_balance(launch_us, tp, mbs):
    """A pass takes at least the longer of issuing and computing, and no more than both."""
    jobs, physics = gpt(tp=tp, mbs=mbs), replace(DEFAULT_PHYSICS, launch_s=launch_us * 1e-6)
    paced, free = stage_times(jobs, physics), stage_times(jobs, replace(physics, launch_s=0.0))
    counts, parts = part_counts(jobs), part_times(jobs, physics)
    issue = sum(counts[name][0, 0] * part.issue[0] for name, part in parts.items())
    assert free.host[0, 0] == pytest.approx(0.0, abs=1e-9)
    assert paced.forward[0, 0] >= max(issue, free.forward[0, 0]) * (1 - 1e-9)
    assert paced.forward[0, 0] <= (issue + free.forward[0, 0]) * (1 + 1e-9)


def test_a_trace_has_no_collectives_to_launch_and_nothing_between_steps():
    run, trace = (gpt(tp=8, mbs=2, traced=on) for on in (False, True))
    assert (
        tensor_launches(trace)[0] == 0 < tensor_launches(run)[0] < tensor_launches(gpt(tp=8, sequence_parallel=True))[0]
    )
    slow = replace(DEFAULT_PHYSICS, step_fixed_s=1.0)
    assert simulate_step(run, slow).step_time_s[0] > simulate_step(run).step_time_s[0]
    assert simulate_step(trace, slow).step_time_s[0] == simulate_step(trace).step_time_s[0]


@given(tp=st.sampled_from([2, 4, 8]), mbs=st.integers(1, 8), full=st.booleans())
def test_without_overlap_every_all_reduce_is_paid(tp, mbs, full):
    """Two for each layer's pass and one for the ends', arXiv 1909.08053 section 3; recomputing repeats the layers'."""
    recompute = int(Recompute.FULL) if full else 0
    jobs = gpt(tp=tp, mbs=mbs, recompute=recompute, overlap_tp_backward=False)
    hidden = gpt(tp=tp, mbs=mbs, recompute=recompute)
    reduce = all_reduce_seconds(tensor_group(jobs), DEFAULT_PHYSICS, np.array([2.0 * mbs * 2048 * 3072]), jobs.nvls)[0]
    passes = 2 * (2 * 30 + 1) + (2 * 30 if full else 0)
    assert stage_times(jobs, DEFAULT_PHYSICS).tp[0, 0] == pytest.approx(passes * reduce)
    assert stage_times(hidden, DEFAULT_PHYSICS).tp[0, 0] < passes * reduce
