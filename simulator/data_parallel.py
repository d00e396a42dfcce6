"""Data parallelism and the optimizer: gradient reduction, parameter gathering, the step itself.

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
from simulator.job import Jobs, most_layers
from simulator.kernels import memory_rate
from simulator.physics import Physics
from simulator.recording import recorded
from simulator.stages import StageTimes

Floats = NDArray[np.float64]

_LAYER_TENSORS = 8.0  # parameter tensors of a decoder layer: five matrices, two norms, a bias
_ADAM_BYTES = 14.0  # per parameter: clip the gradient (8), copy the FP32 result to the model's parameter (6)


@dataclass(frozen=True)
class DataParallel:
    """Data-parallel communication of one step, shape (B,), seconds.

    Attributes:
        exposed: what nothing hides.  gathered: the part of it before or in forward passes, parameters.
        hidden: what runs beside computation.
    """

    exposed: Floats
    gathered: Floats
    hidden: Floats


@recorded
def data_parallel(jobs: Jobs, physics: Physics, stages: StageTimes) -> DataParallel:
    """Gradient reduction and parameter gathering of one step, seconds, shape (B,), at the largest stage.

    Once a step up to ZeRO-1, layer by layer in every micro-batch from ZeRO-2 on.
    """
    whole = _once(jobs, physics, stages)
    sharded = jobs.zero_stage >= 2
    if not sharded.any():
        return whole
    layers = _by_layer(jobs, physics, stages)
    return DataParallel(
        exposed=np.where(sharded, layers.exposed, whole.exposed),
        gathered=np.where(sharded, layers.gathered, whole.gathered),
        hidden=np.where(sharded, layers.hidden, whole.hidden),
    )


def _once(jobs: Jobs, physics: Physics, stages: StageTimes) -> DataParallel:
    """Plain data parallelism and ZeRO-1.

    Gradients are reduced under the last micro-batch's backward pass and parameters gathered under the first
    forward pass, except for one bucket; interleaved stages finish a chunk up to (v-1) p / v micro-batches before
    the end.
    **Source:** Megatron-LM `core/distributed`, bucket of max(40M, 1M x DP) parameters.
    """
    dense, expert = stages.weights.max(axis=1), stages.expert_weights.max(axis=1)
    parameters = np.maximum(dense + expert, 1.0)
    bucket = np.where(jobs.bucket_bytes > 0, jobs.bucket_bytes / jobs.main_grad_bytes, np.maximum(40e6, 1e6 * jobs.dp))
    # Buckets are made of whole matrices, of which a layer has four.
    bucket = np.maximum(bucket, dense / np.maximum(4 * most_layers(jobs), 1))
    buckets = np.maximum(parameters / bucket, 1.0)
    checks = np.where(jobs.checked_collectives & (jobs.dp > 1), physics.check_s * jobs.dp, 0.0)
    reduce = buckets * (_reduce_seconds(jobs, physics, dense / buckets, expert / buckets) + checks)
    gather = buckets * _gather_seconds(jobs, physics, dense / buckets, expert / buckets)
    if jobs.broadcast_params.any():
        gather = np.where(jobs.broadcast_params, _broadcast_seconds(jobs, physics, dense, expert), gather)
    gather = np.where((jobs.zero_stage == 0) | jobs.frozen, 0.0, gather)
    early = 1 / jobs.vpp + np.where(jobs.vpp > 1, (jobs.vpp - 1) * jobs.pp / jobs.vpp, 0.0)
    window = np.minimum(early, jobs.num_microbatches)
    hidden, tail = physics.dp_overlap_hidden, 1 / buckets
    gathered = _left(gather, hidden * window * stages.forward.max(axis=1), jobs.overlap_param_gather, tail)
    shown = gathered + _left(reduce, hidden * window * stages.backward.max(axis=1), jobs.overlap_grad_reduce, tail)
    return DataParallel(exposed=shown, gathered=gathered, hidden=np.maximum(reduce + gather - shown, 0.0))


def _by_layer(jobs: Jobs, physics: Physics, stages: StageTimes) -> DataParallel:
    """ZeRO-2, ZeRO-3 and FSDP, sharded over all of data parallelism or inside groups of it (HSDP).

    Every micro-batch gathers each layer before its forward pass (ZeRO-3), again before its backward pass, and
    reduces its gradients after that. A pipeline keeps what it gathered and reduces once. Some of the traffic shows
    however long the layers compute, at least that of one layer; copies between parameters and the flat buffers of
    the collectives take memory bandwidth.
    **Source:** arXiv 1910.02054 (ZeRO), 2304.11277 (FSDP); pytorch/torchtitan@b5bcd76 parallelize_llama.py
    (no resharding under pipeline parallelism).
    """
    layers = np.maximum(most_layers(jobs), 1)
    dense, expert = (weights.max(axis=1) / layers for weights in (stages.weights, stages.expert_weights))
    reduce = layers * _reduce_seconds(jobs, physics, dense, expert)
    gather = layers * _gather_seconds(jobs, physics, dense, expert)
    kept = jobs.pp > 1
    first = np.where(jobs.zero_stage == 3, gather, 0.0)
    second = np.where(kept, 0.0, first) + reduce
    least = np.maximum(1 - physics.shard_overlap_hidden, 1 / layers)
    hidden = physics.shard_overlap_hidden
    gathered = _left(first, hidden * stages.forward.max(axis=1), jobs.overlap_param_gather, least)
    shown = gathered + _left(second, hidden * stages.backward.max(axis=1), jobs.overlap_grad_reduce, least)
    copied = physics.shard_copy_bytes * layers * np.where(data_group(jobs).size > 1, dense + expert, 0.0)
    copies = copied / memory_rate(jobs.cluster.accelerator, physics)
    rounds = np.where(kept, 1, jobs.num_microbatches)
    # ZeRO-2 gathers the parameters that it stepped, once and before anything runs.
    after = np.where((jobs.zero_stage == 2) & ~jobs.frozen, gather, 0.0)
    return DataParallel(
        exposed=rounds * (shown + copies) + after,
        gathered=rounds * gathered + after,
        hidden=rounds * np.maximum(first + second - shown, 0.0),
    )


def _left(time: Floats, window: Floats, overlap: NDArray[np.bool_], least: Floats) -> Floats:
    """What remains of ``time`` beside ``window`` seconds that hide it; at least the ``least`` share of it."""
    return np.where(overlap, np.maximum(time - window, least * time), time)


def _groups(jobs: Jobs, dense: Floats, expert: Floats) -> list[tuple[Group, Floats]]:
    """Data-parallel communicators, each with the weights it carries."""
    experts = [(expert_data_group(jobs), expert)] if jobs.model.experts else []
    return [(data_group(jobs), dense), *experts]


def _reduce_seconds(jobs: Jobs, physics: Physics, dense: Floats, expert: Floats) -> Floats:
    """Reduce-scatter of gradients, and the all-reduce between replicas of a sharded optimizer; 0 if frozen.

    Without a sharded optimizer the gradients are all-reduced.
    """
    width = np.where(jobs.grad_reduce_fp32, 4.0, 2.0)
    time = np.zeros(jobs.size)
    for group, weights in _groups(jobs, dense, expert):
        one = scatter_seconds(group, physics, width * weights)
        if (jobs.zero_stage == 0).any():
            one = np.where(jobs.zero_stage == 0, all_reduce_seconds(group, physics, width * weights, jobs.nvls), one)
        if (jobs.optimizer_instances > 1).any():
            between = Group(jobs.optimizer_instances, group.size * group.stride, jobs.cluster)
            one = one + all_reduce_seconds(between, physics, width * weights / group.size, jobs.nvls)
        time = time + one
    return np.where(jobs.frozen, 0.0, time)


def _gather_seconds(jobs: Jobs, physics: Physics, dense: Floats, expert: Floats) -> Floats:
    """All-gather of the updated parameters, FP8 where they are kept so."""
    width = np.where(jobs.fp8_param_gather, 1.0, 2.0)
    time = np.zeros(jobs.size)
    for group, weights in _groups(jobs, dense, expert):
        time = time + gather_seconds(group, physics, width * weights)
    return time


def _broadcast_seconds(jobs: Jobs, physics: Physics, dense: Floats, expert: Floats) -> Floats:
    """Broadcasts of the updated parameters, one from every rank that holds any: as long as a gather, and a chunk of
    each has to pass every rank before the next broadcast starts. Tensors are held whole, so that there are no more
    broadcasts than tensors.

    **Source:** InternLM/InternEvo@00a2a34 internlm/solver/optimizer/hybrid_zero_optim.py ``broadcast_params``.
    """
    tensors = _LAYER_TENSORS * most_layers(jobs)
    time = _gather_seconds(jobs, physics, dense, expert)
    for group, _ in _groups(jobs, dense, expert):
        time = time + np.minimum(group.size, tensors) * (group.size - 1) * physics.broadcast_hop_s
    return time


@recorded
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
    seconds = device / memory_rate(chip, physics) + link + host
    return np.where(jobs.frozen, 0.0, seconds)
