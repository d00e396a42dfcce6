"""What every pipeline stage holds of the model, and the bytes of its weights, gradients and optimizer state.

Shape letters: B = jobs, P = pipeline stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.activations import parts_of
from simulator.job import Jobs, Precision, is_narrow, stage_numbers
from simulator.memory_physics import MemoryPhysics
from simulator.models import Parameters, parameters
from simulator.pipeline import held_by_rank, in_flight
from simulator.placement import layer_parts
from simulator.recording import recorded

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class StageContents:
    """Where things are, shapes (B, P).

    Attributes:
        exists, first, last: the stage exists, has the embedding, has the head.
        layers: decoder layers.  parts: what they are made of, by `simulator.placement.layer_parts`.
        in_flight: micro-batches whose activations the stage holds at its peak.
    """

    exists: Bools
    first: Bools
    last: Bools
    layers: Floats
    parts: dict[str, Floats]
    in_flight: Floats

    @classmethod
    def of(cls, jobs: Jobs) -> StageContents:
        """The contents of every stage of the batch."""
        stage = stage_numbers(jobs)
        layers = jobs.stage_layers.astype(np.float64)
        ends = (stage == 0, stage == jobs.last_stage[:, None])
        first, last = (end.astype(np.float64) for end in ends)
        parts = {part: held_by_rank(jobs, count) for part, count in layer_parts(jobs).items()}
        return cls(
            exists=stage < jobs.pp[:, None],
            first=held_by_rank(jobs, first) > 0,
            last=held_by_rank(jobs, last) > 0,
            layers=held_by_rank(jobs, layers),
            parts=parts,
            in_flight=in_flight(jobs),
        )


@recorded
def model_state(jobs: Jobs, stages: StageContents, physics: MemoryPhysics) -> dict[str, Floats]:
    """Weights, gradients and optimizer state by stage, bytes, shapes (B, P).

    **Source:** arXiv 1910.02054 (ZeRO) for what each stage shards; dense parts are sharded over DP x CP, experts
    over their own data-parallel ranks (arXiv 2504.14960).
    """
    gemm, table, experts = _rank_parameters(jobs, stages)
    instances = jobs.optimizer_instances
    dense_shards = np.maximum(jobs.dp * jobs.cp / instances, 1)[:, None]
    expert_shards = np.maximum(jobs.expert_dp / instances, 1)[:, None]

    def held(shared: Floats, routed: Floats, sharded_from: int) -> Floats:
        sharded = jobs.zero_stage[:, None] >= sharded_from
        total: Floats = shared * np.where(sharded, 1 / dense_shards, 1.0)
        return total + routed * np.where(sharded, 1 / expert_shards, 1.0) if jobs.model.experts else total

    sharded = (jobs.zero_stage >= 3)[:, None]
    weight = np.where(sharded, physics.sharded_weight_bytes, weight_bytes(jobs)[:, None])
    table_bytes = np.where(sharded, physics.sharded_weight_bytes, 2.0)
    trained = ~jobs.frozen[:, None]
    raw = np.where(sharded, 0.0, physics.raw_gradient_bytes)
    grad = (jobs.main_grad_bytes[:, None] + raw) * trained
    state = ((jobs.main_param_bytes + jobs.moment_bytes) * (1 - jobs.optimizer_offload))[:, None] * trained
    dense = gemm + table
    return {
        "weights": held(gemm * weight + table * table_bytes, experts * weight, 3),
        "gradients": held(dense * grad, experts * grad, 2),
        "optimizer": held(dense * state, experts * state, 1),
    }


@recorded
def _rank_parameters(jobs: Jobs, stages: StageContents) -> tuple[Floats, Floats, Floats]:
    """Parameters on one rank by stage, shapes (B, P): of dense GEMMs and norms, of embedding and head, of experts."""
    count, tp = parameters(jobs.model), jobs.tp[:, None]
    gemm = stages.layers * (count.norm if jobs.model.hybrid else 2 * count.norm) + stages.last * count.final_norm
    sizes = {
        "attention": count.attention / tp,
        "mamba": count.mamba / tp,
        "mlp": count.dense_mlp / tp,
        "moe": beside_experts(count, tp),
    }
    for part in parts_of(jobs.model):
        gemm += stages.parts[part] * sizes[part]
    expert_ranks = (jobs.ep * jobs.etp)[:, None]
    experts = stages.parts["moe"] * (jobs.model.experts * count.expert / expert_ranks)
    if jobs.model.mtp_layers:
        routed = jobs.model.mtp_layers * jobs.model.experts * count.expert
        gemm += stages.last * ((count.mtp - routed) / tp)
        experts += stages.last * (routed / expert_ranks)
    embedded = stages.first
    if jobs.model.tied_embeddings or jobs.model.mtp_layers:  # for the tied head, or for the MTP layers' own look-up
        embedded = embedded | stages.last
    table = embedded * (count.embedding / tp) + stages.last * (count.head / tp)
    if count.positions:
        table += stages.first * count.positions
    return gemm, table, experts


def beside_experts(count: Parameters, tp: NDArray[np.int64]) -> Floats:
    """Parameters of a MoE layer that are not routed experts: the router is replicated, shared experts are not."""
    return count.router + count.shared_experts / tp


def weight_bytes(jobs: Jobs) -> Floats:
    """Bytes of one GEMM weight, shape (B,): BF16 and, with a narrow format, its quantised copies.

    A quantised weight is held in two orientations, as the forward and the backward GEMM read it; from Blackwell
    on one serves both where the scale is per tensor. FP8 parameters have no BF16 original.

    **Source:** Transformer Engine 2.x tensor/ (rowwise and columnwise data), weight workspaces of its modules.
    """
    per_tensor = (jobs.precision == int(Precision.FP8_TENSORWISE)) | (jobs.precision == int(Precision.FP8_DELAYED))
    orientations = np.where(per_tensor & (jobs.cluster.accelerator.arch_major >= 10), 1.0, 2.0)
    width = np.where(jobs.precision == int(Precision.NVFP4), 0.5 + 1 / 16, 1.0)
    plain = ~is_narrow(jobs)
    narrow = np.where(plain, 0.0, orientations * width)
    original = np.where(jobs.fp8_param_gather & ~plain & (jobs.precision != int(Precision.NVFP4)), 0.0, 2.0)
    weight: Floats = original + narrow
    return weight
