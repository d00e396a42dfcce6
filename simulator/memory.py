"""Peak memory of every pipeline stage.

Shape letters: B = jobs, P = pipeline stages. Bytes throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.activations import kept_fully_recomputed, layer_activations, routed_copies
from simulator.job import Dispatcher, Graph, Jobs, Precision, Recompute, has, hidden_shards, tokens_per_rank
from simulator.memory_physics import DEFAULT_MEMORY_PHYSICS, MemoryPhysics
from simulator.models import Parameters, parameters
from simulator.pipeline import held_by_rank, in_flight
from simulator.placement import dense_layers

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "buffers")


@dataclass(frozen=True)
class MemoryEstimate:
    """What `peak_memory` returns.

    Attributes:
        peak_allocated_bytes: the allocator's peak by stage, shape (B, P), 0 beyond a job's last stage.
        peak_reserved_bytes: the same with allocator overhead and ``outside_bytes``: what must fit, (B, P).
        outside_bytes: CUDA context, communicators and other memory the allocator does not see, shape (B,).
        parts: allocated bytes at the fullest stage by `PARTS`, shapes (B,); they sum to its allocated peak.
    """

    peak_allocated_bytes: Floats
    peak_reserved_bytes: Floats
    outside_bytes: Floats
    parts: dict[str, Floats]


def peak_memory(jobs: Jobs, physics: MemoryPhysics = DEFAULT_MEMORY_PHYSICS) -> MemoryEstimate:
    """Peak memory of every job of the batch.

    Raises:
        ValueError: a hybrid (Mamba) model, whose activations are not modelled.
    """
    if jobs.model.hybrid:
        raise ValueError(f"model {jobs.model.name!r}: memory of hybrid (Mamba) models is not supported")
    stages = _Stages.of(jobs)
    parts = _static(jobs, stages)
    parts["activations"] = _activations(jobs, stages, physics)
    parts["temporary"] = _temporaries(jobs, stages, physics)
    parts["buffers"] = _graph_buffers(jobs, stages, physics) + _placeholder_gradients(jobs, stages)
    parts = {name: np.where(stages.exists, parts[name], 0.0) for name in PARTS}
    allocated: Floats = sum(parts.values(), np.zeros(stages.exists.shape))
    outside = _outside(jobs, physics)
    reserved = allocated * (1 + _reserve_share(jobs, physics))[:, None] + outside[:, None]
    reserved = np.where(stages.exists, reserved, 0.0)
    fullest = np.argmax(reserved, axis=1)[:, None]
    return MemoryEstimate(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        outside_bytes=outside,
        parts={name: np.take_along_axis(value, fullest, axis=1)[:, 0] for name, value in parts.items()},
    )


@dataclass(frozen=True)
class _Stages:
    """Where things are, shapes (B, P): layers by kind, ends of the pipeline, micro-batches in flight."""

    exists: Bools
    first: Bools
    last: Bools
    dense: Floats
    moe: Floats
    in_flight: Floats

    @classmethod
    def of(cls, jobs: Jobs) -> _Stages:
        stage = np.arange(jobs.stage_layers.shape[1])[None, :]
        own = dense_layers(jobs)
        ends = [np.broadcast_to(stage == end, own.shape) for end in (0, jobs.last_stage[:, None])]
        first, last, dense, moe = (held_by_rank(jobs, a * 1.0) for a in (*ends, own, jobs.stage_layers - own))
        return cls(
            exists=stage < jobs.pp[:, None],
            first=first > 0,
            last=last > 0,
            dense=dense,
            moe=moe,
            in_flight=in_flight(jobs),
        )


def _static(jobs: Jobs, stages: _Stages) -> dict[str, Floats]:
    """Weights, gradients and optimizer state by stage, shapes (B, P).

    **Source:** arXiv 1910.02054 (ZeRO) for what each stage shards; dense parts are sharded over DP x CP, experts
    over their own data-parallel ranks (arXiv 2504.14960).
    """
    gemm, table, experts = _rank_parameters(jobs, stages)
    instances = jobs.optimizer_instances
    dense_shards = np.maximum(jobs.dp * jobs.cp / instances, 1)[:, None]
    expert_shards = np.maximum(jobs.expert_dp / instances, 1)[:, None]
    zero = jobs.zero_stage[:, None]

    def held(bytes_each: Floats, expert_bytes: Floats, sharded_from: int) -> Floats:
        shared, routed = (
            np.where(zero >= sharded_from, dense_shards, 1),
            np.where(zero >= sharded_from, expert_shards, 1),
        )
        total: Floats = (bytes_each / shared) + (expert_bytes / routed)
        return total

    weight = _weight_bytes(jobs)[:, None]
    grad = jobs.main_grad_bytes[:, None]
    state = ((jobs.main_param_bytes + jobs.moment_bytes) * (1 - jobs.optimizer_offload))[:, None]
    return {
        "weights": held(gemm * weight + table * 2.0, experts * weight, 3),
        "gradients": held((gemm + table) * grad, experts * grad, 2),
        "optimizer": held((gemm + table) * state, experts * state, 1),
    }


def _rank_parameters(jobs: Jobs, stages: _Stages) -> tuple[Floats, Floats, Floats]:
    """Parameters on one rank by stage, shapes (B, P): of dense GEMMs and norms, of embedding and head, of experts."""
    count, tp = parameters(jobs.model), jobs.tp[:, None]
    both = count.attention / tp + 2 * count.norm
    gemm = stages.dense * (both + count.dense_mlp / tp) + stages.moe * (both + _moe_dense(count, tp))
    gemm = gemm + stages.last * count.final_norm
    expert_ranks = (jobs.ep * jobs.etp)[:, None]
    experts = stages.moe * jobs.model.experts * count.expert / expert_ranks
    if jobs.model.mtp_layers:
        routed = jobs.model.mtp_layers * jobs.model.experts * count.expert
        gemm = gemm + stages.last * (count.mtp - routed) / tp
        experts = experts + stages.last * routed / expert_ranks
    # The last stage needs the embedding too, for a tied head or for the MTP layers' own look-up.
    copied = (jobs.pp[:, None] > 1) & stages.last & bool(jobs.model.tied_embeddings or jobs.model.mtp_layers)
    table = (
        (stages.first | copied) * count.embedding / tp + stages.first * count.positions + stages.last * count.head / tp
    )
    return gemm, table, experts


def _moe_dense(count: Parameters, tp: NDArray[np.int64]) -> Floats:
    """Parameters of a MoE layer that are not routed experts: the router is replicated, shared experts are not."""
    return count.router + count.shared_experts / tp


def _weight_bytes(jobs: Jobs) -> Floats:
    """Bytes of one GEMM weight, shape (B,): BF16 and, with a narrow format, its quantised copies.

    A quantised weight is held in two orientations, as the forward and the backward GEMM read it; from Blackwell
    on one serves both where the scale is per tensor. FP8 parameters have no BF16 original.

    **Source:** Transformer Engine 2.x tensor/ (rowwise and columnwise data), weight workspaces of its modules.
    """
    per_tensor = np.isin(jobs.precision, (Precision.FP8_TENSORWISE, Precision.FP8_DELAYED))
    orientations = np.where(per_tensor & (jobs.cluster.accelerator.arch_major >= 10), 1.0, 2.0)
    width = np.where(jobs.precision == Precision.NVFP4, 0.5 + 1 / 16, 1.0)
    plain = np.isin(jobs.precision, (Precision.BF16, Precision.FP16))
    narrow = np.where(plain, 0.0, orientations * width)
    original = np.where(jobs.fp8_param_gather & ~plain & (jobs.precision != Precision.NVFP4), 0.0, 2.0)
    weight: Floats = original + narrow
    return weight


def _activations(jobs: Jobs, stages: _Stages, physics: MemoryPhysics) -> Floats:
    """Activations kept by stage at its peak, shape (B, P)."""
    layer = layer_activations(jobs, physics)
    input_only, full = kept_fully_recomputed(jobs), has(jobs.recompute, Recompute.FULL)
    share = _recomputed_share(jobs)
    dense = stages.dense * _mixed(layer.kept_dense, input_only, full, share)
    moe = stages.moe * _mixed(layer.kept_moe, input_only, full, share)
    kept = (dense + moe) * stages.in_flight
    mtp_layer = np.where(full, input_only, layer.kept_moe if jobs.model.experts else layer.kept_dense)
    # The last stage: input and output of the final norm, and the MTP layers with theirs and their two inputs.
    hidden = 2.0 * jobs.model.hidden / hidden_shards(jobs)
    ends = 2 * hidden + jobs.model.mtp_layers * (mtp_layer + 5 * hidden)
    kept = kept + stages.last * ends[:, None] * np.minimum(stages.in_flight, 1.0)
    return kept * tokens_per_rank(jobs)[:, None]


def _recomputed_share(jobs: Jobs) -> Floats:
    """Share of a stage's layers that FULL recomputes, shape (B, P): ``recompute_layers`` of each virtual stage."""
    chunk = np.maximum(jobs.stage_layers / jobs.vpp[:, None], 1)
    asked = jobs.recompute_layers[:, None]
    share: Floats = np.where(asked > 0, np.minimum(asked / chunk, 1.0), 1.0)
    return share


def _mixed(kept: Floats, input_only: Floats, full: Bools, share: Floats) -> Floats:
    """Bytes per token of an average layer, shape (B, P), where ``share`` of the layers may keep their input only."""
    recomputed = np.where(full[:, None], share, 0.0)
    mixed: Floats = recomputed * np.minimum(input_only, kept)[:, None] + (1 - recomputed) * kept[:, None]
    return mixed


def _temporaries(jobs: Jobs, stages: _Stages, physics: MemoryPhysics) -> Floats:
    """What is alive only at the peak, shape (B, P).

    The gradients of one layer's widest tensors, the sequence gathered for tensor parallelism, one layer being
    recomputed, one layer more where a forward runs beside a backward to overlap expert communication, the
    gathered layers of ZeRO-3, and the logits on the last stage. Not all of them live at one instant; their sum
    stands for the peak because workspaces that no formula names fill the gap (measured runs: within 3 %).
    """
    shape, tokens = jobs.model, tokens_per_rank(jobs)[:, None]
    layer = layer_activations(jobs, physics)
    input_only, full = kept_fully_recomputed(jobs), has(jobs.recompute, Recompute.FULL)
    redone_dense = layer.full_dense - np.where(full, input_only, layer.kept_dense)
    redone_moe = layer.full_moe - np.where(full, input_only, layer.kept_moe)
    redone = np.maximum((stages.dense > 0) * redone_dense[:, None], (stages.moe > 0) * redone_moe[:, None])
    gathered = np.where(jobs.sequence_parallel & (jobs.tp > 1), 4.0 * shape.hidden, 0.0)[:, None]
    logits = stages.last * (_logit_bytes(jobs, physics) * shape.vocab / jobs.tp)[:, None]
    beside = (stages.moe > 0) * np.where(jobs.ep_overlap, layer.full_moe, 0.0)[:, None]
    per_token = _gradient_bytes(jobs, stages, physics) + np.maximum(redone, 0.0) + beside + gathered + logits
    return per_token * tokens + _gathered_weights(jobs, stages)


def _logit_bytes(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Bytes per token and vocabulary entry, shape (B,): the main logits at their peak and what MTP's have left."""
    peak = np.where(jobs.cross_entropy_fusion, physics.logit_bytes_fused, physics.logit_bytes)
    kept = np.where(jobs.cross_entropy_fusion, physics.logit_kept_bytes_fused, physics.logit_kept_bytes)
    each: Floats = peak + jobs.model.mtp_layers * kept
    return each


def _gradient_bytes(jobs: Jobs, stages: _Stages, physics: MemoryPhysics) -> Floats:
    """Bytes per token of the gradients of one MLP's output and first GEMM, the widest pair, shape (B, P)."""
    shape = jobs.model
    up, hidden = 2 if shape.gated_mlp else 1, 2.0 * shape.hidden
    dense = hidden / hidden_shards(jobs) + 2.0 * up * shape.ffn / jobs.tp
    copies = routed_copies(jobs, physics)
    moe = copies * (hidden + 2.0 * up * shape.moe_ffn / jobs.etp)
    return np.maximum((stages.dense > 0) * dense[:, None], (stages.moe > 0) * moe[:, None])


def _gathered_weights(jobs: Jobs, stages: _Stages) -> Floats:
    """ZeRO-3: the weights of this layer and the next, and this layer's unsharded gradient, shape (B, P)."""
    count, tp = parameters(jobs.model), jobs.tp[:, None]
    both = count.attention / tp + 2 * count.norm
    routed = jobs.model.experts * count.expert / (jobs.ep * jobs.etp)[:, None]
    dense = (stages.dense > 0) * (both + count.dense_mlp / tp)
    moe = (stages.moe > 0) * (both + _moe_dense(count, tp) + routed)
    each = np.where(jobs.zero_stage >= 3, 2 * _weight_bytes(jobs) + jobs.main_grad_bytes, 0.0)
    gathered: Floats = each[:, None] * np.maximum(dense, moe)
    return gathered


def _graph_buffers(jobs: Jobs, stages: _Stages, physics: MemoryPhysics) -> Floats:
    """Static buffers of CUDA graphs that capture parts of layers, shape (B, P); a whole-iteration graph has none."""
    by_layer = (jobs.cuda_graph & ~np.int64(Graph.FULL_ITERATION)) > 0
    hidden = 2.0 * jobs.model.hidden / hidden_shards(jobs) * tokens_per_rank(jobs)
    one_layer = np.where(by_layer, physics.graph_hidden_states * hidden, 0.0)
    buffers: Floats = one_layer[:, None] * jobs.stage_layers * stages.in_flight
    return buffers


def _placeholder_gradients(jobs: Jobs, stages: _Stages) -> Floats:
    """BF16 tensors returned to autograd in place of gradients already added to the FP32 buffer, shape (B, P).

    One per distinct weight shape, so one layer of each kind and one expert.

    **Source:** Transformer Engine 2.x module/base.py ``get_dummy_wgrad``.
    """
    count, tp = parameters(jobs.model), jobs.tp[:, None]
    dense = (stages.dense > 0) * count.dense_mlp / tp
    moe = (stages.moe > 0) * (count.shared_experts / tp + count.expert / jobs.etp[:, None])
    placeholders: Floats = 2.0 * (count.attention / tp + dense + moe)
    return placeholders


def _outside(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Memory the allocator does not see, shape (B,)."""
    groups = (jobs.tp, jobs.pp, jobs.cp, jobs.dp, jobs.ep, jobs.etp, np.where(jobs.ep > 1, jobs.expert_dp, 1))
    communicators = sum(((size > 1).astype(np.float64) for size in groups), np.zeros(jobs.size))
    nvls = jobs.nvls & (jobs.cluster.accelerator.arch_major >= 9) & (jobs.cluster.n_gpus > 1)
    kernels = np.isin(jobs.dispatcher, (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)) & (jobs.ep > 1)
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
