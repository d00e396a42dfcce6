"""What one micro-batch costs on each pipeline stage: computation, exposed communication, host gaps.

Shape letters:  B = jobs,  P = pipeline stages of the deepest job (zero-padded).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import (
    dispatch_seconds,
    gather_seconds,
    ring_attention_seconds,
    tensor_group,
    tensor_seconds,
)
from simulator.compute import (
    PartTime,
    expert_copies,
    expert_width,
    nothing,
    part_times,
    recomputed_share,
    sharded_tokens,
)
from simulator.job import (
    Dispatcher,
    Jobs,
    Offload,
    Recompute,
    has,
    offloaded_share,
    stage_numbers,
    tokens_per_rank,
)
from simulator.physics import Physics
from simulator.pipeline import held_by_rank, holds_two
from simulator.placement import layer_parts
from simulator.recording import recorded

Floats = NDArray[np.float64]

# How much of a span can hide what runs beside it. Source: prior, no overlap is perfect; the first thing to calibrate.
_UNDER_BATCH = 0.9  # of another micro-batch's layer, for its expert dispatch
_QUEUED = 0.9  # of that overlap where one hardware connection before Blackwell orders all kernels
_UNDER_SHARED = 3.0  # forward times of the shared experts: their forward, and a backward of twice that
_UNDER_OFFLOAD = 0.8  # of a stage's pass, for moving its activations
_OFFLOAD_SHOWN = 0.05  # of the move shows anyway

# Tensor-parallel blocks (gather and scatter) in each part; the embedding only scatters, the head only gathers.
_TENSOR_BLOCKS = {"attention": 1.0, "mamba": 1.0, "mlp": 1.0, "mtp": 1.0, "embedding": 0.5, "head": 0.5}


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one micro-batch, forward plus backward, shape (B, P), unless said.

    Attributes:
        compute: GPU work with recomputation and the slow-down by overlapped communication.
        tp, ep, cp: communication that nothing hides.
        host: gaps while the host launches, synchronises or moves offloaded activations.
        forward, backward: the same total split by pass, for what may hide beneath.
        weight_gradients: the part of ``backward`` that no other stage waits for.
        weights, expert_weights: parameters a rank of the stage holds.
        gemm_eff: rate of the matrix products over the peak of their format, shape (B,).
    """

    compute: Floats
    tp: Floats
    ep: Floats
    cp: Floats
    host: Floats
    forward: Floats
    backward: Floats
    weight_gradients: Floats
    weights: Floats
    expert_weights: Floats
    gemm_eff: Floats

    @property
    def total(self) -> Floats:
        """Forward plus backward of one micro-batch, shape (B, P)."""
        return self.compute + self.tp + self.ep + self.cp + self.host


def part_counts(jobs: Jobs) -> dict[str, Floats]:
    """How many of each part every stage holds, shape (B, P) each.

    Embedding first; head, and MTP with a layer and a head of its own, last.
    """
    shape, counts = jobs.model, layer_parts(jobs)
    stage = stage_numbers(jobs)
    first = (stage == 0).astype(np.float64)
    last = (stage == jobs.last_stage[:, None]).astype(np.float64)
    if shape.mtp_layers:
        counts["mtp"] = shape.mtp_layers * last
        for part in ("attention", "moe" if shape.experts else "mlp"):
            counts[part] = counts[part] + counts["mtp"]
    return counts | {"embedding": first, "head": last * (1 + shape.mtp_layers)}


@dataclass(frozen=True)
class _PartCost:
    """One part with its communication; shape (B,), seconds per micro-batch; pairs are (forward, backward).

    ``sync``: the host waits for the GPU, and then the reverse.
    """

    compute: tuple[Floats, Floats]
    tp: tuple[Floats, Floats]
    ep: tuple[Floats, Floats]
    cp: tuple[Floats, Floats]
    issue: tuple[Floats, Floats]
    sync: tuple[Floats, Floats]


@recorded
def stage_times(jobs: Jobs, physics: Physics) -> StageTimes:
    """Per-stage costs of one micro-batch, seconds, shape (B, P).

    A rank of DualPipe holds two stages and sees half of the micro-batches in each: the average of both.

    Raises:
        ValueError: a job's number format is not supported by its accelerator.
    """
    parts, counts = part_times(jobs, physics), part_counts(jobs)
    costs = _costs(jobs, physics, parts)
    names, none = list(costs), nothing(jobs)
    held, crossed = _contents(jobs, [counts[n] for n in names])

    def spread(columns: list[Floats], count: Floats = crossed) -> Floats:
        there = [count[..., part] * column[:, None] for part, column in enumerate(columns) if column is not none]
        return reduce(np.add, there) if there else np.zeros_like(count[..., 0])

    def both(field: str) -> tuple[Floats, Floats]:
        pairs = [getattr(costs[n], field) for n in names]
        return spread([p[0] for p in pairs]), spread([p[1] for p in pairs])

    compute, tp, ep, cp, issue, sync = map(both, ("compute", "tp", "ep", "cp", "issue", "sync"))
    busy = [compute[i] + tp[i] + ep[i] + cp[i] for i in (0, 1)]
    wait = [none[:, None], none[:, None]]
    if jobs.offload.any():
        # Activations move to the host beside the stage's computation, in order: only what takes longer is waited for.
        moved = spread([_offload_seconds(jobs, physics, n) for n in names])
        wait = [np.maximum(moved - _UNDER_OFFLOAD * busy[i], _OFFLOAD_SHOWN * moved) for i in (0, 1)]
    traced = jobs.traced[:, None]  # without collectives, which are added to the trace afterwards
    kept = [np.where(traced, compute[i], busy[i]) + wait[i] for i in (0, 1)]
    stall = _stalls(jobs, physics)
    host = [_paced(jobs, issue[i], kept[i]) - kept[i] + wait[i] + sync[i] + stall for i in (0, 1)]
    gemm, ideal = (spread([getattr(parts[n], kind) for n in names]).sum(axis=1) for kind in ("gemm", "gemm_ideal"))
    return StageTimes(
        compute=compute[0] + compute[1],
        tp=tp[0] + tp[1],
        ep=ep[0] + ep[1],
        cp=cp[0] + cp[1],
        host=host[0] + host[1],
        forward=busy[0] + host[0],
        backward=busy[1] + host[1],
        weight_gradients=spread([parts[n].wgrad for n in names]),
        weights=spread([parts[n].weights for n in names], held),
        expert_weights=spread([parts[n].expert_weights for n in names], held),
        gemm_eff=ideal / gemm,
    )


def _paced(jobs: Jobs, issue: Floats, kept: Floats) -> Floats:
    """The longer of the host's and the GPU's time of a pass, shape (B, P): a host that runs ahead hides the shorter.

    Near balance either waits for the other at times: the eighth root of eighth powers, 9 % at balance. A trace of one
    layer starts with an empty queue, and most of its kernels meet the host near balance: the root of squares, 41 %.

    **Source:** fitted on the Ultra-Scale Playbook's layouts, which cross over from kernels to their issue (median
    error 3.9 % against 6.5 % with the root of squares), and on vTrain's traces (5.2 % against 4.6 %).
    """
    host, device = issue * issue, kept * kept
    ahead: Floats = np.sqrt(np.sqrt(np.sqrt(host**4 + device**4)))
    return np.where(jobs.traced[:, None], np.sqrt(host + device), ahead) if jobs.traced.any() else ahead


def _stalls(jobs: Jobs, physics: Physics) -> Floats | float:
    """Time per pass and stage, shape (B, P), for which transfers with each neighbour stop it where they stall."""
    if not np.any(jobs.stalled_sends):
        return 0.0
    stage, pp = np.arange(jobs.stage_layers.shape[1])[None, :], jobs.pp[:, None]
    neighbours = ((stage > 0).astype(np.int64) + (stage < pp - 1)) * (stage < pp)
    return np.asarray(physics.send_stall_s * neighbours * jobs.stalled_sends[:, None], dtype=np.float64)


@recorded
def _contents(jobs: Jobs, counts: list[Floats]) -> tuple[Floats, Floats]:
    """Parts that a rank holds, and those that one micro-batch crosses on it: shapes (B, P, parts)."""
    held = np.stack([held_by_rank(jobs, count).T for count in counts]).T
    twice = holds_two(jobs)
    return held, held if twice is None else held * np.where(twice, 0.5, 1.0)[:, None, None]


@recorded
def _costs(jobs: Jobs, physics: Physics, parts: dict[str, PartTime]) -> dict[str, _PartCost]:
    full, none = recomputed_share(jobs), nothing(jobs)
    bits = jobs.recompute
    again = {"attention": full, "mamba": full, "mlp": np.where(has(bits, Recompute.MLP), 1.0, full)}
    again["moe"] = np.where(has(bits, Recompute.MOE), 1.0, full)
    block = _exposed_tensor(jobs, physics)
    layer = sum((parts[n].forward + parts[n].backward for n in ("attention", "moe") if n in parts), np.zeros(jobs.size))
    few_sms = jobs.dispatcher == int(Dispatcher.HYBRIDEP)
    contention = np.where(few_sms, physics.contention, physics.copy_contention)
    contention = contention * np.where(jobs.sm_margin, 1 - physics.sm_margin_relief, 1.0)
    costs = {}
    for name, part in parts.items():
        replayed = again.get(name, none)
        blocks = _TENSOR_BLOCKS.get(name, 1.0 if jobs.model.shared_ffn else 0.0)
        forward, backward, beside = (blocks * seconds if blocks else none for seconds in block)
        ep, hidden = _exposed_dispatch(jobs, physics, part, layer, replayed) if name == "moe" else ((none, none), none)
        cp = _exposed_ring(jobs, physics, part) if name == "attention" else (none, none)
        slow = contention * hidden / 2
        checks = _check_seconds(jobs, physics, blocks)
        replay_issue = _product(jobs, part.issue / np.maximum(part.forward, 1e-12), part.replay)
        costs[name] = _PartCost(
            compute=(part.forward + slow, part.backward + part.replay + slow + physics.copy_contention * beside),
            tp=(forward, backward + _product(jobs, replayed, forward)),
            ep=ep,
            cp=cp,
            issue=(part.issue + 2 * checks, part.issue_backward + replay_issue + 3 * checks),
            sync=(part.sync, _product(jobs, part.sync, replayed)),
        )
    return costs


def _product(jobs: Jobs, one: Floats, other: Floats) -> Floats:
    """Their product, without computing it where one of them is nothing."""
    none = nothing(jobs)
    return none if one is none or other is none else one * other


def _check_seconds(jobs: Jobs, physics: Physics, blocks: float) -> Floats:
    """Host time to check and start one collective of a tensor-parallel block, shape (B,).

    **Source:** pytorch/pytorch `ProcessGroupWrapper.cpp`, an all-gather of fingerprints over gloo.
    """
    if not jobs.checked_collectives.any():
        return nothing(jobs)
    each = physics.check_s * jobs.tp + gather_seconds(tensor_group(jobs), physics, np.zeros(jobs.size))
    return np.where(jobs.checked_collectives & (jobs.tp > 1), blocks * each, 0.0)


def _exposed_tensor(jobs: Jobs, physics: Physics) -> tuple[Floats, Floats, Floats]:
    """TP communication of one block that computation does not hide, forward and backward, and what the latter hides.

    Backward: the gather for weight gradients and the scatter of the data gradient run beside one GEMM each, the
    all-reduce without sequence parallelism (twice the bytes) beside a single one. It needs kernels to be queued in
    order (one hardware connection before Blackwell).
    **Source:** Megatron-LM `core/tensor_parallel/layers.py`, LinearWithGradAccumulationAndAsyncCommunication.
    """
    ordered = (jobs.max_connections == 1) | (jobs.cluster.accelerator.arch_major >= 10)
    covered = physics.tp_backward_hidden * np.where(ordered, 1.0, 0.5) * jobs.overlap_tp_backward
    shown = np.where(jobs.tp_comm_overlap & jobs.sequence_parallel, 1 - physics.tp_overlap_hidden, 1.0)
    gather, reduction = tensor_seconds(jobs, physics)
    forward = shown * (gather + reduction)
    under = covered * np.where(jobs.sequence_parallel, 1.0, 0.5)
    backward = shown * ((2 - covered) * gather + (1 - under) * reduction)
    return forward, backward, shown * (covered * gather + under * reduction)


@recorded
def _exposed_dispatch(
    jobs: Jobs, physics: Physics, part: PartTime, layer: Floats, replayed: Floats
) -> tuple[tuple[Floats, Floats], Floats]:
    """Expert dispatch and combine not hidden, (forward, backward); and the hidden seconds of both passes.

    Overlap takes another micro-batch's computation (``layer``: attention and experts, both passes), which exists
    with interleaving or without pipeline; shared experts hide up to their own time.
    """
    one = dispatch_seconds(jobs, physics)
    passes = 2 * one, 2 * one * (1 + replayed)
    both = passes[0] + passes[1]
    other = jobs.ep_overlap & ((jobs.vpp > 1) | (jobs.pp == 1)) & (jobs.num_microbatches > 1)
    queued = (jobs.max_connections == 1) & (jobs.cluster.accelerator.arch_major < 10)
    share = (physics.ep_overlap_hidden + physics.delay_wgrad_hidden * jobs.delay_wgrad) * np.where(queued, _QUEUED, 1.0)
    under_batch = np.where(other, np.minimum(share * both, _UNDER_BATCH * layer), 0.0)
    shared = jobs.shared_expert_overlap & ~other
    under_shared = np.where(shared, np.minimum(both / 2, _UNDER_SHARED * part.cover), 0.0)
    hidden = under_batch + under_shared
    shown = 1 - hidden / np.maximum(both, 1e-12)
    return (passes[0] * shown, passes[1] * shown), hidden


def _exposed_ring(jobs: Jobs, physics: Physics, part: PartTime) -> tuple[Floats, Floats]:
    """Key/value exchange that outlasts the attention kernel it runs beside; backward moves gradients too."""
    if not (jobs.cp > 1).any():
        return nothing(jobs), nothing(jobs)
    replayed = np.where(has(jobs.recompute, Recompute.CORE_ATTN), 1.0, recomputed_share(jobs))
    ring = ring_attention_seconds(jobs, physics)
    cover = physics.cp_overlap_hidden * part.cover
    forward = np.maximum(ring - cover, (1 - physics.cp_overlap_hidden) * ring)
    backward = np.maximum(2 * ring - 2.5 * cover, (1 - physics.cp_overlap_hidden) * 2 * ring)
    return forward, backward + replayed * forward


def _offload_seconds(jobs: Jobs, physics: Physics, name: str) -> Floats:
    """Time in which the host link moves a part's offloaded activations, each way, shape (B,)."""
    shape, rows = jobs.model, tokens_per_rank(jobs)
    moved = np.zeros(jobs.size)

    def add(flag: Offload, size: Floats) -> Floats:
        return moved + np.where(has(jobs.offload, flag), size, 0.0)

    if name == "attention":
        width = 2.0 * shape.heads * (shape.v_dim or shape.head_dim) * rows / jobs.tp
        moved = add(Offload.CORE_ATTN, 2 * width)
        moved = add(Offload.ATTN_PROJ, width)
        moved = add(Offload.LAYER, offloaded_share(jobs) * 2.0 * shape.hidden * sharded_tokens(jobs))
    if name == "moe":
        copies = expert_copies(jobs)
        moved = add(Offload.EXPERT_FC1, 2.0 * expert_width(shape) * copies)
        moved = add(Offload.MOE_ACT, 2.0 * shape.moe_ffn / jobs.etp * copies)
    return moved / (physics.host_link_eff * jobs.cluster.accelerator.host_bytes_per_s)
