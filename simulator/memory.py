"""Peak memory of every pipeline stage.

Shape letters: B = jobs, P = pipeline stages. Bytes throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from simulator.activations import (
    ATTENTION,
    MAMBA,
    MLP,
    MOE,
    PARTS,
    Activations,
    kept_fully_recomputed,
    part_activations,
    parts_of,
    routed_copies,
)
from simulator.job import Dispatcher, Jobs, Recompute, has, hidden_shards, tokens_per_rank
from simulator.memory_physics import DEFAULT_MEMORY_PHYSICS, MemoryPhysics
from simulator.model_state import StageContents, beside_experts, model_state, weight_bytes
from simulator.models import parameters
from simulator.recording import recorded

Floats = NDArray[np.float64]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "buffers")


@dataclass(frozen=True)
class MemoryEstimate:
    """What `peak_memory` returns.

    Attributes:
        peak_allocated_bytes: the allocator's peak by stage, shape (B, P), 0 beyond a job's last stage.
        peak_reserved_bytes: the same with allocator overhead and ``outside_bytes``: what must fit, (B, P). Where
            memory ends the allocator returns what it can, so that only what cannot fit exceeds it.
        outside_bytes: CUDA context, communicators and other memory the allocator does not see, shape (B,).
        parts: allocated bytes at the fullest stage by `MEMORY_PARTS`, shapes (B,); they sum to its allocated peak.
    """

    peak_allocated_bytes: Floats
    peak_reserved_bytes: Floats
    outside_bytes: Floats
    parts: dict[str, Floats]


@recorded
def peak_memory(jobs: Jobs, physics: MemoryPhysics = DEFAULT_MEMORY_PHYSICS) -> MemoryEstimate:
    """Peak memory of every job of the batch."""
    stages = StageContents.of(jobs)
    layer = part_activations(jobs, physics)
    parts = model_state(jobs, stages, physics)
    parts["activations"] = _activations(jobs, stages, layer)
    parts["temporary"] = _temporaries(jobs, stages, layer, physics)
    parts["buffers"] = _placeholder_gradients(jobs, stages, physics)
    outside, share = _outside(jobs, physics), _reserve_share(jobs, physics)[:, None]
    if physics.gathers_ahead:
        room = (jobs.cluster.accelerator.memory_bytes - outside)[:, None] / (1 + share) - _total(parts)
        waiting = np.minimum(_gathers_ahead(jobs, stages, physics), np.maximum(room, 0.0))
        parts["buffers"] = parts["buffers"] + waiting
    allocated = np.where(stages.exists, _total(parts), 0.0)
    reserved = np.where(stages.exists, _reserved(jobs, physics, allocated, share, outside[:, None]), 0.0)
    fullest = np.arange(jobs.size), reserved.argmax(axis=1)
    return MemoryEstimate(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        outside_bytes=outside,
        parts={name: parts[name][fullest] for name in MEMORY_PARTS},
    )


@recorded
def _reserved(jobs: Jobs, physics: MemoryPhysics, allocated: Floats, share: Floats, outside: Floats) -> Floats:
    """Device memory in use by stage: before the allocator gives up it returns segments that no tensor touches, (B, P).

    The pools of captured CUDA graphs keep theirs, since a replay uses the same addresses.

    **Source:** PyTorch c10/cuda/CUDACachingAllocator.cpp, ``release_cached_blocks`` before an out-of-memory error.
    """
    reclaimed = np.where(jobs.cuda_graph > 0, 0.0, physics.reclaimed)[:, None]
    least = allocated * (1 + (1 - reclaimed) * share) + outside
    return np.minimum(allocated * (1 + share) + outside, np.maximum(least, jobs.cluster.accelerator.memory_bytes))


@recorded
def _total(parts: dict[str, Floats]) -> Floats:
    return reduce(np.add, parts.values())


@recorded
def _activations(jobs: Jobs, stages: StageContents, layer: Activations) -> Floats:
    """Activations kept by stage at its peak, shape (B, P)."""
    full = has(jobs.recompute, Recompute.FULL)[:, None]
    recomputed = np.where(full, _recomputed_share(jobs), 0.0)
    input_only = kept_fully_recomputed(jobs)[:, None]
    whole = _total({part: stages.parts[part] * layer.kept[part][:, None] for part in parts_of(jobs.model)})
    # The last stage: input and output of the final norm, and the MTP layers with theirs and their two inputs.
    hidden = 2.0 * jobs.model.hidden / hidden_shards(jobs)[:, None]
    ends = 2 * hidden
    if jobs.model.mtp_layers:
        mlp = MOE if jobs.model.experts else MLP
        mtp = np.where(full, input_only, (layer.kept[ATTENTION] + layer.kept[mlp])[:, None])
        ends = ends + jobs.model.mtp_layers * (mtp + 5 * hidden)
    per_token: dict[str, Floats] = {
        "layers": (1 - recomputed) * whole * stages.in_flight,
        "inputs of recomputed layers": recomputed * np.minimum(stages.layers * input_only, whole) * stages.in_flight,
        "ends": stages.last * ends * np.minimum(stages.in_flight, 1.0),
    }
    activations: Floats = _total(per_token) * tokens_per_rank(jobs)[:, None]
    return activations


def _recomputed_share(jobs: Jobs) -> Floats:
    """Share of a stage's layers that FULL recomputes, shape (B, P): ``recompute_layers`` of each virtual stage."""
    chunk = np.maximum(jobs.stage_layers / jobs.vpp[:, None], 1)
    asked = jobs.recompute_layers[:, None]
    share: Floats = np.where(asked > 0, np.minimum(asked / chunk, 1.0), 1.0)
    return share


@recorded
def _temporaries(jobs: Jobs, stages: StageContents, layer: Activations, physics: MemoryPhysics) -> Floats:
    """What is alive only at the peak, shape (B, P).

    The gradients of one layer's widest tensors, the sequence gathered for tensor parallelism, one layer being
    recomputed, one layer more where a forward runs beside a backward to overlap expert communication, the
    gathered layers of ZeRO-3, and the logits on the last stage. Not all of them live at one instant; their sum
    stands for the peak because workspaces that no formula names fill the gap (measured runs: within 3 %).
    """
    shape, tokens = jobs.model, tokens_per_rank(jobs)[:, None]
    full = has(jobs.recompute, Recompute.FULL)
    redone = {part: layer.full[part] - np.where(full, 0.0, layer.kept[part]) for part in PARTS}
    again = _widest_layer(jobs, stages, redone) - (full * kept_fully_recomputed(jobs))[:, None]
    gathered = np.where(jobs.sequence_parallel & (jobs.tp > 1), 4.0 * shape.hidden, 0.0)[:, None]
    logits = stages.last * (_logit_bytes(jobs, physics) * shape.vocab / jobs.tp)[:, None]
    another = np.where(jobs.ep_overlap, layer.full[ATTENTION] + layer.full[MOE], 0.0)[:, None]
    beside = np.where(stages.parts[MOE] > 0, another, 0.0)
    gradients = _gradient_bytes(jobs, stages, physics)
    per_token: dict[str, Floats] = {
        "gradients": gradients,
        "recomputed layer": np.maximum(again, 0.0),
        "layer beside it": beside,
        "gathered sequence": gathered,
        "logits": logits,
    }
    return _total(per_token) * tokens + _gathered_weights(jobs, stages)


def _widest_layer(jobs: Jobs, stages: StageContents, by_part: dict[str, Floats]) -> Floats:
    """The largest sum over the parts of one layer of each stage, shape (B, P)."""
    present = {part: (stages.parts[part] > 0) * by_part[part][:, None] for part in parts_of(jobs.model)}
    mixer = present.pop(ATTENTION)
    if jobs.model.hybrid:
        return reduce(np.maximum, present.values(), mixer)
    return mixer + reduce(np.maximum, present.values())


def _gathers_ahead(jobs: Jobs, stages: StageContents, physics: MemoryPhysics) -> Floats:
    """Bytes of gathered inputs, two a layer, that communication holds for a host running ahead, shape (B, P).

    The host waits for nothing but a receive, so that the first stage of a pipeline queues all its first forwards
    but two; without a pipeline the launch queue is the limit. Where memory ends the allocator waits for them.

    **Source:** huggingface/nanotron@00708b8 parallel/tensor_parallel/functional.py, gathers with ``async_op``.
    """
    alone = (jobs.pp == 1)[:, None]
    queued = np.where(alone, np.inf, np.maximum(stages.in_flight - 2, 0.0) * stages.layers * stages.first)
    seen = (jobs.tp > 1) & ((jobs.pp == 1) | (jobs.tp <= physics.gathers_ahead_ranks)) & jobs.sequence_parallel
    layers = np.where(seen[:, None], np.minimum(queued, physics.gathers_ahead), 0.0)
    gathered: Floats = 4.0 * jobs.model.hidden * tokens_per_rank(jobs)[:, None] * layers
    return gathered


def _logit_bytes(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Bytes per token and vocabulary entry, shape (B,): the main logits at their peak and what MTP's have left."""
    peak = np.where(jobs.cross_entropy_fusion, physics.logit_bytes_fused, physics.logit_bytes)
    kept = np.where(jobs.cross_entropy_fusion, physics.logit_kept_bytes_fused, physics.logit_kept_bytes)
    stale = np.where(jobs.num_microbatches > 1, physics.logit_stale_bytes, 0.0)
    each: Floats = peak + jobs.model.mtp_layers * kept + stale
    return each


def _gradient_bytes(jobs: Jobs, stages: StageContents, physics: MemoryPhysics) -> Floats:
    """Bytes per token of the gradients of one part's output and first GEMM, the widest pair, shape (B, P)."""
    shape = jobs.model
    up, hidden = 2 if shape.gated_mlp else 1, 2.0 * shape.hidden
    dense = hidden / hidden_shards(jobs) + 2.0 * up * shape.ffn / jobs.tp
    copies = routed_copies(jobs, physics)
    moe = copies * (2.0 * (shape.moe_latent or shape.hidden) + 2.0 * up * shape.moe_ffn / jobs.etp)
    mamba = hidden / hidden_shards(jobs) + 4.0 * shape.mamba_heads * shape.mamba_head_dim / jobs.tp
    widest = np.maximum((stages.parts[MLP] > 0) * dense[:, None], (stages.parts[MOE] > 0) * moe[:, None])
    return np.maximum(widest, (stages.parts[MAMBA] > 0) * mamba[:, None])


def _gathered_weights(jobs: Jobs, stages: StageContents) -> Floats:
    """ZeRO-3: the weights of this layer and the next, and this layer's unsharded gradient, shape (B, P)."""
    if not (jobs.zero_stage >= 3).any():
        return np.zeros(stages.exists.shape)
    count, tp = parameters(jobs.model), jobs.tp
    routed = jobs.model.experts * count.expert / (jobs.ep * jobs.etp)
    weights = {
        ATTENTION: count.attention / tp + 2 * count.norm,
        MLP: count.dense_mlp / tp,
        MOE: beside_experts(count, tp) + routed,
        MAMBA: count.mamba / tp + count.norm,
    }
    each = np.where(jobs.zero_stage >= 3, 2 * weight_bytes(jobs) + jobs.main_grad_bytes, 0.0)
    gathered: Floats = each[:, None] * _widest_layer(jobs, stages, weights)
    return gathered


@recorded
def _placeholder_gradients(jobs: Jobs, stages: StageContents, physics: MemoryPhysics) -> Floats:
    """BF16 tensors returned to autograd in place of gradients already added to the FP32 buffer, shape (B, P).

    One per distinct weight shape, so one layer of each kind and one expert.

    **Source:** Transformer Engine 2.x module/base.py ``get_dummy_wgrad``.
    """
    count, tp = parameters(jobs.model), jobs.tp[:, None]
    dense = (stages.parts[MLP] > 0) * count.dense_mlp / tp
    moe = (stages.parts[MOE] > 0) * (count.shared_experts / tp + count.expert / jobs.etp[:, None])
    mixers = (stages.parts[ATTENTION] > 0) * count.attention / tp + (stages.parts[MAMBA] > 0) * count.mamba / tp
    placeholders: Floats = physics.placeholder_gradients * 2.0 * (mixers + dense + moe)
    return placeholders


def _outside(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Memory the allocator does not see, shape (B,)."""
    groups = (jobs.tp, jobs.pp, jobs.cp, jobs.dp, jobs.ep, jobs.etp, np.where(jobs.ep > 1, jobs.expert_dp, 1))
    communicators = sum(((size > 1).astype(np.float64) for size in groups), np.zeros(jobs.size))
    nvls = jobs.nvls & (jobs.cluster.accelerator.arch_major >= 9) & (jobs.cluster.n_gpus > 1)
    kernels = (jobs.dispatcher >= int(Dispatcher.DEEPEP)) & (jobs.ep > 1)
    outside: Floats = (
        physics.context_bytes
        + communicators * physics.communicator_bytes
        + nvls * physics.nvls_bytes
        + kernels * physics.dispatcher_bytes
    )
    return outside


def _reserve_share(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Reserved but unallocated memory over allocated, shape (B,)."""
    dropless = (jobs.model.experts > 0) & ~jobs.force_balance & (jobs.capacity_factor == 0)
    streams = jobs.ep_overlap & ~jobs.avoid_record_streams
    loose = physics.reserve + physics.reserve_dropless * dropless + physics.reserve_record_streams * streams
    share: Floats = np.where(jobs.expandable_segments, physics.reserve_expandable, loose)
    return share
