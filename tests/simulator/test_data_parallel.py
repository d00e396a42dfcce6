import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import all_reduce_seconds, data_group, gather_seconds, scatter_seconds
from simulator.data_parallel import data_parallel
from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.models import model
from simulator.physics import DEFAULT_PHYSICS
from simulator.stages import stage_times

H100 = parse_cluster("256xH100-SXM5-80GB")


def exposed(**columns):
    jobs = make_jobs(model("llama-3-8b"), H100, **{"gbs": 256, "seq_len": 4096, "tp": 2, **columns})
    stages = stage_times(jobs, DEFAULT_PHYSICS)
    return data_parallel(jobs, DEFAULT_PHYSICS, stages).exposed[0], jobs, stages.weights.max(axis=1)


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_one_bucket_is_one_collective(zero_stage):
    """Without overlap and with everything in one bucket, a step pays what its collectives cost."""
    still = {"overlap_grad_reduce": False, "overlap_param_gather": False, "bucket_bytes": 10**12}
    seconds, jobs, weights = exposed(zero_stage=zero_stage, **still)
    group = data_group(jobs)
    reduced = all_reduce_seconds(group, DEFAULT_PHYSICS, 4 * weights, jobs.nvls)
    halves = scatter_seconds(group, DEFAULT_PHYSICS, 4 * weights) + gather_seconds(group, DEFAULT_PHYSICS, 2 * weights)
    assert seconds == pytest.approx((halves if zero_stage else reduced)[0])


@given(small=st.integers(10**6, 10**9), factor=st.integers(1, 100), zero_stage=st.sampled_from([0, 1]))
def test_smaller_buckets_pay_more_latency(small, factor, zero_stage):
    still = {"overlap_grad_reduce": False, "overlap_param_gather": False, "zero_stage": zero_stage}
    fine, coarse = (exposed(bucket_bytes=size, **still)[0] for size in (small, small * factor))
    assert fine >= coarse * (1 - 1e-12)


def test_a_dense_model_has_no_expert_collectives():
    """The group of a dense model's experts is as large as its data-parallel one, and nothing is sent in it."""
    seconds, jobs, _ = exposed(zero_stage=1, bucket_bytes=10**12)
    assert np.all(jobs.expert_dp > 1)
    assert seconds < exposed(zero_stage=1, bucket_bytes=10**7)[0]
