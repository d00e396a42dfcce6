"""What is simulated: a batch of training jobs as a struct of arrays.

Shape letters:  B = jobs in the batch,  P = pipeline stages of the deepest job (shorter jobs are zero-padded).
A single job is a batch of one. All jobs of a batch share one model and one cluster; everything a tuner can
move is an array of shape (B,), so that a formula is written once and prices a whole search space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from itertools import zip_longest
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.hardware import ClusterSpec
from simulator.levers import (
    GRAPH_PARTS,
    RECOMPUTE_MODULES,
    Dispatcher,
    Graph,
    Offload,
    Precision,
    Recompute,
    Schedule,
)
from simulator.models import ModelShape

__all__ = [
    "DEFAULTS",
    "GRAPH_PARTS",
    "RECOMPUTE_MODULES",
    "Bools",
    "Dispatcher",
    "Floats",
    "Graph",
    "Ints",
    "Jobs",
    "Offload",
    "Precision",
    "Recompute",
    "Schedule",
    "even_stage_layers",
    "has",
    "hidden_shards",
    "is_narrow",
    "joined",
    "make_jobs",
    "most_layers",
    "offloaded_share",
    "once",
    "present",
    "stage_numbers",
    "tokens_per_rank",
]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Jobs:
    """A batch of B training jobs of one model on one cluster. Every array has shape (B,) unless said.

    Attributes:
        tp, pp, vpp, cp, ep, etp: parallel sizes; ``vpp`` is 1 without interleaving, ``etp`` is never unset.
        schedule: a `Schedule`.
        mbs, gbs: sequences per micro-batch and per step.  seq_len: tokens per sequence.
        stage_layers: decoder layers on each pipeline stage, shape (B, P), zero-padded; rows sum to the model's. In
            memory stage by stage (Fortran order), as everything computed from it: so numpy's inner loops are long.
        recompute: bits of `Recompute`.  recompute_layers: with FULL, layers per virtual stage that are
            recomputed (0: all of them).
        main_grad_bytes, main_param_bytes, moment_bytes: bytes per parameter of the gradient buffer, of the FP32
            copy and of *both* Adam moments together (4, 4, 8 by default).
        zero_stage: 0 plain data parallelism, 1 distributed optimizer, 2, 3 (FSDP).
        offload_layers: with `Offload.LAYER`, layers of each stage whose activations go to the host (0: all).
        optimizer_offload: fraction of the optimizer state held and stepped on the host, 0 to 1.
        optimizer_instances: replicas of the sharded optimizer (1: sharded over all of DP x CP).
        max_connections: CUDA_DEVICE_MAX_CONNECTIONS, 0 when unset.
        bucket_bytes: gradient bucket, 0 for the stack's default.
        force_balance: tokens forced evenly over experts (benchmark only).
        capacity_factor: expert capacity factor, 0 for dropless.
        fp8_attention: scores and weighted sum in FP8.
        fused_experts: the experts' activation and casts run inside the grouped GEMMs.
        overlap_tp_backward: tensor-parallel collectives of the backward pass run beside its GEMMs; off, it waits.
        partitioned_sends: without sequence parallelism, each tensor-parallel rank sends its part of a hidden state to
            the next pipeline stage, instead of each sending all of it.
        traced: not a run but the kernels of a profiler's trace, added up: nothing happens between steps, and the host
            launches no collectives.
        portable_attention: fused attention written for Ampere's matrix instructions (flash-attention 2, Triton) on
            whatever accelerator; off, a kernel of its generation.
        broadcast_params: each rank of a sharded optimizer broadcasts the parameters it stepped, one rank after the
            other, in place of a gather.
        frozen: only low-rank adapters are trained (LoRA): the matrices have no gradients and no optimizer state.
        sample_len: mean tokens of the samples that are packed into a sequence and attend to themselves alone,
            0 where a sequence is one sample.
        host_tuned: manual garbage collection and CPU binding (0, 1 or 2 of the two).
        checked_collectives: the ranks of a collective compare its arguments over TCP before it runs
            (``TORCH_DISTRIBUTED_DEBUG=DETAIL``).
        p2p_handshake: pipeline stages agree on the shape of a tensor before they send it.
        stalled_sends: every pipeline transfer stops both stages for a fixed time.
    """

    model: ModelShape
    cluster: ClusterSpec
    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    schedule: Ints
    mbs: Ints
    gbs: Ints
    seq_len: Ints
    stage_layers: Ints
    precision: Ints
    recompute: Ints
    recompute_layers: Ints
    dispatcher: Ints
    cuda_graph: Ints
    offload: Ints
    offload_layers: Ints
    zero_stage: Ints
    optimizer_instances: Ints
    max_connections: Ints
    bucket_bytes: Ints
    host_tuned: Ints
    sample_len: Ints
    main_grad_bytes: Floats
    main_param_bytes: Floats
    moment_bytes: Floats
    optimizer_offload: Floats
    capacity_factor: Floats
    sequence_parallel: Bools
    overlap_grad_reduce: Bools
    overlap_param_gather: Bools
    grad_reduce_fp32: Bools
    tp_comm_overlap: Bools
    ep_overlap: Bools
    delay_wgrad: Bools
    shared_expert_overlap: Bools
    grouped_gemm: Bools
    permute_fusion: Bools
    router_fusion: Bools
    cross_entropy_fusion: Bools
    standard_fusions: Bools
    fused_attention: Bools
    fp8_attention: Bools
    fused_experts: Bools
    portable_attention: Bools
    frozen: Bools
    broadcast_params: Bools
    fp8_param_gather: Bools
    overlap_p2p: Bools
    partitioned_sends: Bools
    overlap_tp_backward: Bools
    expandable_segments: Bools
    avoid_record_streams: Bools
    nvls: Bools
    sm_margin: Bools
    force_balance: Bools
    compiled: Bools
    traced: Bools
    checked_collectives: Bools
    p2p_handshake: Bools
    stalled_sends: Bools

    @property
    def size(self) -> int:
        """Number of jobs B."""
        return int(self.tp.shape[0])

    @cached_property
    def dp(self) -> Ints:
        """Data-parallel size of the dense part, shape (B,): GPUs / (tp pp cp)."""
        size: Ints = np.maximum(self.cluster.n_gpus // (self.tp * self.pp * self.cp), 1)
        return size

    @cached_property
    def expert_dp(self) -> Ints:
        """Data-parallel size of the experts, shape (B,): GPUs / (etp ep pp)."""
        size: Ints = np.maximum(self.cluster.n_gpus // (self.etp * self.ep * self.pp), 1)
        return size

    @cached_property
    def last_stage(self) -> Ints:
        """Pipeline stage of the final layers and the head, shape (B,): the first one where chunks form a V."""
        folded = (self.schedule == int(Schedule.ZB_V)) | (self.schedule == int(Schedule.DUALPIPE_V))
        stage: Ints = np.where(folded, 0, self.pp - 1)
        return stage

    @cached_property
    def num_microbatches(self) -> Ints:
        """Micro-batches per step and data-parallel rank, shape (B,)."""
        count: Ints = np.maximum(self.gbs // (self.mbs * self.dp), 1)
        return count

    def take(self, index: Any) -> Jobs:
        """The jobs at ``index`` (anything numpy accepts along axis 0) as a new batch."""
        moved = {name: getattr(self, name)[index] for name in _COLUMNS}
        moved["stage_layers"] = self.stage_layers.T[:, index].T  # stays stage by stage in memory
        return replace(self, **moved)


_COLUMNS = tuple(f.name for f in fields(Jobs) if f.name not in ("model", "cluster"))


def once(function: Callable[Concatenate[Jobs, P], T]) -> Callable[Concatenate[Jobs, P], T]:
    """``function``, called once for each batch as long as its other arguments are the same objects.

    What it returns is shared: it must not be written to.
    """
    key = f"{function.__module__}.{function.__name__}"

    @wraps(function)
    def known(jobs: Jobs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        held = vars(jobs).get(key)
        if held is None or any(new is not old for new, old in zip(args, held[0], strict=True)):
            held = vars(jobs)[key] = args, function(jobs, *args, **kwargs)
        found: T = held[1]
        return found

    return known


def joined(batches: Sequence[Jobs]) -> Jobs:
    """One batch of the jobs of several, in order; all of one model and cluster."""
    first, deepest = batches[0], max(jobs.stage_layers.shape[1] for jobs in batches)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(jobs, name) for jobs in batches]) for name in _COLUMNS if name != "stage_layers"
    }
    padded = [np.pad(j.stage_layers.T, ((0, deepest - j.stage_layers.shape[1]), (0, 0))) for j in batches]
    return replace(first, stage_layers=np.concatenate(padded, axis=1).T, **columns)


@once
def stage_numbers(jobs: Jobs) -> Ints:
    """0, 1, 2, ... along the stages, shape (B, P), in memory as `Jobs.stage_layers`."""
    numbers: Ints = np.repeat(np.arange(jobs.stage_layers.shape[1]), jobs.size).reshape(-1, jobs.size).T
    return numbers


def has(bits: Ints, flag: int) -> Bools:
    """Where ``flag`` is set in a column of flags, shape (B,)."""
    held: Bools = (bits & int(flag)) != 0
    return held


@once
def tokens_per_rank(jobs: Jobs) -> Floats:
    """Tokens of one micro-batch on one tensor-parallel group, shape (B,)."""
    tokens: Floats = jobs.mbs * jobs.seq_len / jobs.cp
    return tokens


@once
def most_layers(jobs: Jobs) -> Ints:
    """Layers of the stage that has most, shape (B,)."""
    layers: Ints = jobs.stage_layers.max(axis=1)
    return layers


@once
def offloaded_share(jobs: Jobs) -> Floats:
    """Share of the layers whose activations go to host memory as a whole, shape (B,)."""
    asked, held = jobs.offload_layers, np.maximum(most_layers(jobs), 1)
    share = np.where(asked > 0, np.minimum(asked / held, 1.0), 1.0)
    return np.where(has(jobs.offload, Offload.LAYER), share, 0.0)


def present(column: Ints) -> list[int]:
    """The values that occur in a column of small numbers, ascending."""
    values: list[int] = np.flatnonzero(np.bincount(column)).tolist()
    return values


@once
def is_narrow(jobs: Jobs) -> Bools:
    """Where the large GEMMs run in less than 16 bits, shape (B,)."""
    bits: Bools = (jobs.precision != int(Precision.BF16)) & (jobs.precision != int(Precision.FP16))
    return bits


@once
def hidden_shards(jobs: Jobs) -> Floats:
    """Ranks a hidden state is spread over outside the tensor-parallel GEMMs, shape (B,): TP with sequence parallelism.

    **Source:** arXiv 2205.05198 section 4.2.2.
    """
    return np.where(jobs.sequence_parallel, jobs.tp, 1).astype(np.float64)


DEFAULTS: dict[str, Any] = {
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1,
    "schedule": Schedule.ONE_F_ONE_B, "precision": Precision.BF16, "recompute": Recompute.NONE, "recompute_layers": 0,
    "dispatcher": Dispatcher.ALLTOALL, "cuda_graph": Graph.NONE, "offload": Offload.NONE, "zero_stage": 1,
    "offload_layers": 0,
    "optimizer_instances": 1, "max_connections": 1, "bucket_bytes": 0, "host_tuned": 0, "sample_len": 0,
    "main_grad_bytes": 4.0, "main_param_bytes": 4.0, "moment_bytes": 8.0, "optimizer_offload": 0.0,
    "capacity_factor": 0.0, "sequence_parallel": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "grad_reduce_fp32": True, "tp_comm_overlap": False, "ep_overlap": False, "delay_wgrad": False,
    "shared_expert_overlap": False, "grouped_gemm": True, "permute_fusion": True, "router_fusion": False,
    "cross_entropy_fusion": False, "standard_fusions": True, "fused_attention": True, "fp8_param_gather": False,
    "overlap_p2p": True, "partitioned_sends": False, "expandable_segments": False, "avoid_record_streams": False,
    "nvls": True, "sm_margin": False, "force_balance": False, "compiled": False, "portable_attention": False,
    "frozen": False, "broadcast_params": False, "fp8_attention": False, "fused_experts": False,
    "checked_collectives": False, "p2p_handshake": False, "stalled_sends": False,
    "traced": False, "overlap_tp_backward": True,
}  # fmt: skip
"""What a column of `make_jobs` is when it is not given."""


_DTYPES: dict[str, type[np.generic]] = {
    field.name: {"Ints": np.int64, "Floats": np.float64, "Bools": np.bool_}[str(field.type)]
    for field in fields(Jobs)
    if field.name in _COLUMNS
}
_DEFAULT_COLUMNS: dict[str, NDArray[Any]] = {
    name: np.array([value], dtype=_DTYPES[name]) for name, value in DEFAULTS.items()
}
for _column in _DEFAULT_COLUMNS.values():
    _column.setflags(write=False)  # batches of one share them


def make_jobs(model: ModelShape, cluster: ClusterSpec, **columns: Any) -> Jobs:
    """Build a batch from scalars and sequences, broadcast to one length B.

    Args:
        model, cluster: shared by the batch.
        columns: any `Jobs` field; scalars are repeated. ``gbs`` and ``seq_len`` are required. Without
            ``stage_layers`` the layers are split evenly, the remainder going to the first stages; rows of it may
            be as long as their job has stages.

    Raises:
        TypeError: an unknown column, or ``gbs`` or ``seq_len`` missing.
        ValueError: columns of different lengths.
    """
    unknown = set(columns) - set(DEFAULTS) - {"gbs", "seq_len", "stage_layers"}
    missing = {"gbs", "seq_len"} - set(columns)
    if unknown or missing:
        raise TypeError(f"make_jobs: unknown columns {sorted(unknown)}, missing {sorted(missing)}")
    stage_layers = columns.pop("stage_layers", None)
    given: dict[str, NDArray[Any]] = {
        name: np.atleast_1d(np.asarray(column, dtype=_DTYPES[name])) for name, column in columns.items()
    }
    shape = np.broadcast_shapes(*(column.shape for column in given.values()))
    arrays: dict[str, Any] = {
        name: column if column.shape == shape else np.broadcast_to(column, shape)
        for name, column in (_DEFAULT_COLUMNS | given).items()
    }
    if stage_layers is None:
        stage_layers = even_stage_layers(model.layers, arrays["pp"])
    elif not isinstance(stage_layers, np.ndarray):
        stage_layers = _padded(stage_layers)
    stage_layers = np.broadcast_to(np.atleast_2d(stage_layers), (arrays["pp"].shape[0], stage_layers.shape[-1]))
    return Jobs(model=model, cluster=cluster, stage_layers=np.asfortranarray(stage_layers, dtype=np.int64), **arrays)


def _padded(stage_layers: Sequence[Any]) -> Ints:
    """One row, or rows of different lengths, filled up with zeros to the longest."""
    rows = stage_layers if np.ndim(stage_layers[0]) else [stage_layers]
    return np.array(list(zip_longest(*rows, fillvalue=0)), dtype=np.int64).T


def even_stage_layers(layers: int, pp: Ints) -> Ints:
    """Layers per stage when split evenly, shape (B, max pp); the remainder goes to the first stages."""
    stage = np.arange(int(pp.max()))[:, None]
    base, rest = layers // pp, layers % pp
    split: Ints = np.where(stage < pp, base + (stage < rest), 0).T
    return split
