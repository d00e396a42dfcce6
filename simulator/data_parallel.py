"""What a step pays once: gradient reduction, parameter gathering, the optimizer.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import (
    Group,
    all_reduce_seconds,
    data_group,
    expert_data_group,
    gather_seconds,
    scatter_seconds,
)
from simulator.job import Jobs
from simulator.physics import Physics
from simulator.stages import StageTimes

Floats = NDArray[np.float64]

_ADAM_BYTES = 14.0  # per parameter: clip the gradient (8), copy the FP32 result to the model's parameter (6)


@dataclass(frozen=True)
class DataParallel:
    """Data-parallel communication of one step, shape (B,), seconds."""

    exposed: Floats
    hidden: Floats


def data_parallel(jobs: Jobs, physics: Physics, stages: StageTimes) -> DataParallel:
    """Gradient reduction and parameter gathering of one step, seconds, shape (B,), at the largest stage.

    Gradients are reduced under the last micro-batch's backward pass and parameters gathered under the first
    forward pass, except for one bucket; interleaved stages finish a chunk up to (v-1) p / v micro-batches before
    the end. ZeRO-2 reduces and ZeRO-3 also gathers (twice) in every micro-batch.
    **Source:** Megatron-LM `core/distributed`, bucket of max(40M, 1M x DP) parameters.
    """
    dense, expert = stages.weights.max(axis=1), stages.expert_weights.max(axis=1)
    parameters = np.maximum(dense + expert, 1.0)
    bucket = np.where(jobs.bucket_bytes > 0, jobs.bucket_bytes / jobs.main_grad_bytes, np.maximum(40e6, 1e6 * jobs.dp))
    buckets = np.maximum(parameters / bucket, 1.0)
    reduce = buckets * _reduce_seconds(jobs, physics, dense / buckets, expert / buckets)
    gather = buckets * _gather_seconds(jobs, physics, dense / buckets, expert / buckets)
    # Without a sharded optimizer no parameters are gathered; frozen ones have no gradients.
    reduce = np.where(jobs.frozen, 0.0, reduce)
    gather = np.where((jobs.zero_stage == 0) | (jobs.frozen & (jobs.zero_stage < 3)), 0.0, gather)
    early = 1 / jobs.vpp + np.where(jobs.vpp > 1, (jobs.vpp - 1) * jobs.pp / jobs.vpp, 0.0)
    window = np.minimum(early, jobs.num_microbatches)
    forward, backward = stages.forward.max(axis=1) * window, stages.backward.max(axis=1) * window
    tail = 1 / buckets
    once = _left(physics, reduce, backward, jobs.overlap_grad_reduce, tail)
    once = once + _left(physics, gather, forward, jobs.overlap_param_gather, tail)
    total = reduce + gather
    sharded = jobs.zero_stage >= 2
    if np.any(sharded):
        all_weights = np.where(jobs.zero_stage == 3, gather, 0.0)
        forward, backward = stages.forward.max(axis=1), stages.backward.max(axis=1)
        layer = 1 / np.maximum(jobs.stage_layers.max(axis=1), 1)
        each = _left(physics, all_weights, forward, jobs.overlap_param_gather, layer)
        each = each + _left(physics, all_weights + reduce, backward, jobs.overlap_grad_reduce, layer)
        rest = np.where(jobs.zero_stage == 3, 0.0, _left(physics, gather, forward, jobs.overlap_param_gather, tail))
        once = np.where(sharded, each * jobs.num_microbatches + rest, once)
        total = np.where(sharded, (2 * all_weights + reduce) * jobs.num_microbatches + rest, total)
    return DataParallel(exposed=once, hidden=np.maximum(total - once, 0.0))


def _left(physics: Physics, time: Floats, window: Floats, overlap: NDArray[np.bool_], tail: Floats) -> Floats:
    """What remains of ``time`` beside computation of length ``window``; at least the ``tail`` share of it."""
    return np.where(overlap, np.maximum(time - physics.dp_overlap_hidden * window, tail * time), time)


def _reduce_seconds(jobs: Jobs, physics: Physics, dense: Floats, expert: Floats) -> Floats:
    """Reduce-scatter of one bucket of gradients, and the all-reduce between replicas of a sharded optimizer.

    Without a sharded optimizer the gradients are all-reduced.
    """
    width = np.where(jobs.grad_reduce_fp32, 4.0, 2.0)
    time = np.zeros(jobs.size)
    for group, weights in _groups(jobs, dense, expert):
        scattered = scatter_seconds(group, physics, width * weights)
        whole = all_reduce_seconds(group, physics, width * weights, jobs.nvls)
        time = time + np.where(jobs.zero_stage == 0, whole, scattered)
        between = Group(jobs.optimizer_instances, group.size * group.stride, jobs.cluster)
        shard = width * weights / group.size
        time = time + all_reduce_seconds(between, physics, shard, jobs.nvls)
    return time


def _gather_seconds(jobs: Jobs, physics: Physics, dense: Floats, expert: Floats) -> Floats:
    """All-gather of one bucket of updated parameters, FP8 where they are kept so."""
    width = np.where(jobs.fp8_param_gather, 1.0, 2.0)
    groups = _groups(jobs, dense, expert)
    time: Floats = np.sum([gather_seconds(group, physics, width * weights) for group, weights in groups], axis=0)
    return time


def _groups(jobs: Jobs, dense: Floats, expert: Floats) -> list[tuple[Group, Floats]]:
    """Communicators of gradients, each with the parameters it is for."""
    groups = [(data_group(jobs), dense)]
    return [*groups, (expert_data_group(jobs), expert)] if jobs.model.experts else groups


def optimizer_seconds(jobs: Jobs, physics: Physics, stages: StageTimes) -> Floats:
    """Seconds of the optimizer step at the stage with most parameters, shape (B,); 0 where the matrices are frozen.

    Local gradients are zeroed, their norm taken and scaled; the shard is clipped and stepped (gradient read, main
    parameter and moments read and written, parameter written). An offloaded share goes over the host link and is
    stepped by the host.  **Source:** memory traffic of Megatron-LM's distributed optimizer, counted.
    """
    dense, expert = stages.weights.max(axis=1), stages.expert_weights.max(axis=1)
    split = np.where(jobs.zero_stage == 0, 1, data_group(jobs).size)
    expert_split = np.where(jobs.zero_stage == 0, 1, expert_data_group(jobs).size)
    shard = dense / split + expert / expert_split
    held = np.where(jobs.zero_stage >= 2, shard, dense + expert)
    per_step = jobs.main_grad_bytes + 2 * (jobs.moment_bytes + jobs.main_param_bytes) + _ADAM_BYTES
    device = 4 * jobs.main_grad_bytes * held + per_step * shard * (1 - jobs.optimizer_offload)
    chip = jobs.cluster.accelerator
    on_host = shard * jobs.optimizer_offload
    link = (jobs.main_grad_bytes + 2) * on_host / (physics.host_link_eff * chip.host_bytes_per_s)
    host = per_step * on_host / physics.host_adam_bytes_per_s
    seconds = device / (physics.memory_eff * chip.memory_bytes_per_s) + link + host
    return np.where(jobs.frozen, 0.0, seconds)
