"""Sharded data parallelism: what is sent, how often, and what of it shows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import all_reduce_seconds, data_group, gather_seconds, scatter_seconds
from simulator.data_parallel import data_parallel
from simulator.hardware import parse_cluster
from simulator.job import make_jobs
from simulator.models import model
from simulator.posterior import DEFAULT_PHYSICS
from simulator.stages import stage_times

EXPOSED = replace(DEFAULT_PHYSICS, shard_copy_bytes=0.0)


def llama(n_gpus=64, **columns):
    cluster = parse_cluster(f"{n_gpus}xH100-SXM5-80GB")
    return make_jobs(model("llama-3-8b"), cluster, **({"gbs": 4 * n_gpus, "seq_len": 8192, "zero_stage": 3} | columns))


def shown(jobs, physics=EXPOSED):
    return data_parallel(jobs, physics, stage_times(jobs, physics))


def test_sharded_traffic_is_counted_by_micro_batch():
    """Without overlap: two gathers and a reduction of every layer, twice as often with half the micro-batch."""
    jobs = llama(mbs=[2, 1], overlap_grad_reduce=False, overlap_param_gather=False, grad_reduce_fp32=False)
    layers, group = jobs.model.layers, data_group(jobs)
    layer = stage_times(jobs, EXPOSED).weights.max(axis=1) / layers
    round_trip = 2 * gather_seconds(group, EXPOSED, 2 * layer) + scatter_seconds(group, EXPOSED, 2 * layer)
    assert shown(jobs).exposed == pytest.approx([2, 4] * (layers * round_trip))


def test_a_pipeline_keeps_what_it_gathered():
    flat, piped = (
        shown(llama(pp=pp, overlap_grad_reduce=False, overlap_param_gather=False)).exposed[0] for pp in (1, 2)
    )
    assert piped < flat / 4  # a quarter of the rounds, half of the layers and one gather less


@given(stage=st.sampled_from([1, 2, 3]), mbs=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 2]))
def test_exposed_and_hidden_add_up_to_the_traffic(stage, mbs, pp):
    columns = {"zero_stage": stage, "mbs": mbs, "pp": pp, "gbs": 512}
    beside = shown(llama(**columns))
    alone = shown(llama(**columns, overlap_grad_reduce=False, overlap_param_gather=False))
    assert alone.hidden[0] == pytest.approx(0, abs=1e-9)
    assert beside.exposed + beside.hidden == pytest.approx(alone.exposed)
    assert np.all(beside.exposed <= alone.exposed)


def test_gathers_of_groups_inside_a_node_do_not_see_the_network():
    slow = parse_cluster("512xH100-SXM5-80GB")
    slow = replace(slow, accelerator=replace(slow.accelerator, nic_bytes_per_s=5e9))
    jobs = replace(llama(512, optimizer_instances=[1, 64], frozen=True), cluster=slow)
    node = llama(8, frozen=True)
    whole, hybrid = shown(jobs).exposed
    assert hybrid == pytest.approx(shown(node).exposed[0])
    assert whole > 5 * hybrid


def test_gathers_of_a_ring_grow_with_its_ranks():
    small, large = (gather_seconds(data_group(llama(n)), DEFAULT_PHYSICS, np.array([1.0]))[0] for n in (64, 512))
    assert large == pytest.approx(8 * small, rel=0.1)


def test_copies_take_memory_bandwidth():
    jobs = llama()
    bare, copied = (shown(jobs, replace(EXPOSED, shard_copy_bytes=size)) for size in (0.0, 14.0))
    rate = DEFAULT_PHYSICS.memory_eff * jobs.cluster.accelerator.memory_bytes_per_s
    weights = stage_times(jobs, EXPOSED).weights.sum()
    assert copied.exposed - bare.exposed == pytest.approx(4 * 14 * weights / rate)
    assert copied.hidden == bare.hidden


def unhidden(**columns):
    still = {"overlap_grad_reduce": False, "overlap_param_gather": False}
    jobs = llama(256, tp=2, seq_len=4096, **still, **columns)
    return shown(jobs).exposed[0], jobs


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_one_bucket_is_one_collective(zero_stage):
    """Without overlap and with everything in one bucket, a step pays what its collectives cost."""
    seconds, jobs = unhidden(zero_stage=zero_stage, bucket_bytes=10**12)
    group, weights = data_group(jobs), stage_times(jobs, EXPOSED).weights.max(axis=1)
    reduced = all_reduce_seconds(group, EXPOSED, 4 * weights, jobs.nvls)
    halves = scatter_seconds(group, EXPOSED, 4 * weights) + gather_seconds(group, EXPOSED, 2 * weights)
    assert seconds == pytest.approx((halves if zero_stage else reduced)[0])


@given(small=st.integers(10**6, 10**9), factor=st.integers(1, 100), zero_stage=st.sampled_from([0, 1]))
def test_smaller_buckets_pay_more_latency(small, factor, zero_stage):
    fine, coarse = (unhidden(zero_stage=zero_stage, bucket_bytes=size)[0] for size in (small, small * factor))
    assert fine >= coarse * (1 - 1e-12)


def test_a_bucket_holds_whole_matrices():
    """No more buckets than matrices, however small they are asked to be: four in each of 32 layers."""
    seconds, jobs = unhidden(zero_stage=0, bucket_bytes=1)
    group, weights = data_group(jobs), stage_times(jobs, EXPOSED).weights.max(axis=1)
    each = all_reduce_seconds(group, EXPOSED, weights / jobs.model.layers, jobs.nvls)
    assert seconds == pytest.approx(4 * jobs.model.layers * each[0])


def test_checked_buckets_pay_for_every_rank():
    (plain, jobs), (checked, _) = (unhidden(zero_stage=0, bucket_bytes=1, checked_collectives=on) for on in (0, 1))
    assert checked - plain == pytest.approx(4 * jobs.model.layers * EXPOSED.check_s * jobs.dp[0])


def test_broadcasts_move_a_gathers_bytes_and_wait_for_every_rank_in_turn():
    jobs = llama(
        512, zero_stage=1, broadcast_params=[False, True], overlap_param_gather=False, overlap_grad_reduce=False
    )
    gathered, broadcast = shown(jobs).gathered
    waits = 8 * jobs.model.layers * (data_group(jobs).size[0] - 1)  # fewer tensors than ranks
    assert broadcast - gathered == pytest.approx(waits * EXPOSED.broadcast_hop_s, rel=0.2)
    node = llama(8, zero_stage=1, broadcast_params=[False, True], overlap_param_gather=False)
    assert np.ptp(shown(node).gathered) < 0.01
