"""One training step of a batch of jobs: time, its breakdown and memory.

Shape letters:  B = jobs,  P = pipeline stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.chunks import CHUNK, chunks, keep_freed_memory
from simulator.collectives import Group, all_reduce_seconds, send_seconds
from simulator.compute import tokens_per_expert
from simulator.data_parallel import data_parallel, optimizer_seconds
from simulator.hardware import ClusterSpec
from simulator.job import Jobs
from simulator.memory import MemoryEstimate, peak_memory
from simulator.metrics import mfu, model_flops_per_s_per_gpu, peak_flops, tokens_per_s_per_gpu
from simulator.physics import Physics
from simulator.pipeline import Passes, pipeline_times
from simulator.posterior import DEFAULT_PHYSICS
from simulator.recording import recorded
from simulator.stages import StageTimes, stage_times

Floats = NDArray[np.float64]

BREAKDOWN = (
    "compute",  # GEMMs, attention, memory-bound operations, recomputation
    "exposed_tp", "exposed_ep", "exposed_cp", "exposed_pp", "exposed_dp",  # communication not hidden
    "bubble",  # pipeline warm-up, drain and stage imbalance
    "optimizer", "host",  # optimizer step; launch gaps and host stalls
)  # fmt: skip


@dataclass(frozen=True)
class StepEstimate:
    """What `simulate_step` returns. Shapes: (B,) unless said.

    Attributes:
        step_time_s: one optimizer step, steady state.
        breakdown_s: seconds by part; keys are `BREAKDOWN`, the parts sum to ``step_time_s``.
        peak_allocated_bytes: per pipeline stage, shape (B, P), 0 beyond a job's last stage.
        peak_reserved_bytes: the same with allocator overhead, CUDA context and communicator buffers: what
            must fit in the accelerator's memory, shape (B, P).
        outside_bytes: the part of it that the allocator does not see (context, communicators).
        memory_bytes: parts of the allocated peak at the fullest stage: ``weights``, ``gradients``,
            ``optimizer``, ``activations``, ``temporary``, ``buffers``.
        tokens_per_s_per_gpu, model_flops_per_s_per_gpu, mfu: see `simulator.metrics`.
        diagnostics: ratios a tuner's diagnosis reads: ``gemm_eff``, ``bubble_frac``, ``stage_imbalance``,
            ``host_gap_frac``, ``tokens_per_expert``, ``model_state_frac``, ``frag_frac``, ``mem_peak_frac``.
    """

    step_time_s: Floats
    breakdown_s: dict[str, Floats]
    peak_allocated_bytes: Floats
    peak_reserved_bytes: Floats
    outside_bytes: Floats
    memory_bytes: dict[str, Floats]
    tokens_per_s_per_gpu: Floats
    model_flops_per_s_per_gpu: Floats
    mfu: Floats
    diagnostics: dict[str, Floats]


@recorded
def simulate_step(jobs: Jobs, physics: Physics = DEFAULT_PHYSICS) -> StepEstimate:
    """Time, breakdown and memory of one optimizer step of every job.

    The slowest stage's share of each kind of work is multiplied by the micro-batches; what the pipeline takes
    beyond that and beyond the exposed sends is the bubble. The slowest of all nodes sets the pace.

    A large batch is priced in chunks whose arrays fit into a core's cache.

    Args:
        jobs: batch of B jobs.
        physics: constants; the default is the engineer's cost model.

    Raises:
        ValueError: a job's number format is not supported by its accelerator.

    **Source:** the parts have theirs; the maximum of n Gaussian node speeds is sqrt(2 ln n) spreads above the mean.
    """
    if jobs.size > CHUNK:
        keep_freed_memory()
        return _joined([simulate_step(jobs.take(chunk), physics) for chunk in chunks(jobs.size)])
    stages = stage_times(jobs, physics)
    parts = _breakdown(jobs, physics, stages)
    step = np.sum([parts[name] for name in BREAKDOWN], axis=0)
    memory = peak_memory(jobs, physics.memory)
    rate = tokens_per_s_per_gpu(step, jobs.gbs, jobs.seq_len, jobs.cluster.n_gpus)
    flops = model_flops_per_s_per_gpu(rate, jobs.model, jobs.seq_len)
    return StepEstimate(
        step_time_s=step,
        breakdown_s=parts,
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        outside_bytes=memory.outside_bytes,
        memory_bytes=memory.parts,
        tokens_per_s_per_gpu=rate,
        model_flops_per_s_per_gpu=flops,
        mfu=mfu(flops, peak_flops(jobs.cluster.accelerator, jobs.precision)),
        diagnostics=_diagnostics(jobs, stages, parts, step, memory),
    )


def _joined(estimates: Sequence[StepEstimate]) -> StepEstimate:
    """One estimate of the jobs of several, in order."""

    def together(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: np.concatenate([value[name] for value in values]) for name in values[0]}
        return np.concatenate(values)

    return StepEstimate(*(together(values) for values in zip(*(vars(one).values() for one in estimates), strict=True)))


@recorded
def pace(cluster: ClusterSpec, physics: Physics) -> float:
    """Seconds that a second of the formulas takes on the slowest of the cluster's nodes."""
    return float(physics.pace * (1 + physics.straggler * np.sqrt(2 * np.log(cluster.nodes))))


def step_seconds(jobs: Jobs, physics: Physics = DEFAULT_PHYSICS) -> Floats:
    """Seconds of one step alone, shape (B,): what `simulate_step` says, without memory and diagnostics."""
    step: Floats = np.sum(list(step_parts(jobs, physics).values()), axis=0)
    return step


def step_parts(jobs: Jobs, physics: Physics = DEFAULT_PHYSICS) -> dict[str, Floats]:
    """The parts of `step_seconds`, keyed by `BREAKDOWN`, shapes (B,)."""
    return _breakdown(jobs, physics, stage_times(jobs, physics))


@recorded
def _breakdown(jobs: Jobs, physics: Physics, stages: StageTimes) -> dict[str, Floats]:
    """Seconds by part, keyed by `BREAKDOWN`."""
    total = stages.total
    rows, slowest = np.arange(jobs.size), total.argmax(axis=1)
    count = jobs.num_microbatches
    passes = Passes(stages.forward, stages.backward, stages.weight_gradients)
    work, sends = pipeline_times(jobs, passes, send_seconds(jobs, physics))
    busy = {name: count * getattr(stages, name)[rows, slowest] for name in ("compute", "tp", "ep", "cp", "host")}
    shared = data_parallel(jobs, physics, stages)
    fixed = physics.step_fixed_s * (1 - physics.host_tuning * jobs.host_tuned) * ~jobs.traced
    everyone = Group(np.array([jobs.cluster.n_gpus]), np.array([1]), jobs.cluster)
    norm = all_reduce_seconds(everyone, physics, np.zeros(1), jobs.nvls)
    parts = {
        "compute": busy["compute"] + physics.contention * shared.hidden,
        "exposed_tp": busy["tp"],
        "exposed_ep": busy["ep"],
        "exposed_cp": busy["cp"],
        "exposed_pp": sends,
        "exposed_dp": shared.exposed,
        "bubble": np.maximum(work - count * total.max(axis=1), 0.0),  # not below by rounding
        "optimizer": optimizer_seconds(jobs, physics, stages) + norm,
        "host": busy["host"] + fixed,
    }
    slowest_node = pace(jobs.cluster, physics)
    return {name: np.asarray(parts[name] * slowest_node, dtype=np.float64) for name in BREAKDOWN}


def _diagnostics(
    jobs: Jobs, stages: StageTimes, parts: dict[str, Floats], step: Floats, memory: MemoryEstimate
) -> dict[str, Floats]:
    """Ratios a tuner's diagnosis reads; see `StepEstimate`."""
    total = stages.total
    allocated, reserved = memory.peak_allocated_bytes, memory.peak_reserved_bytes
    fullest = reserved.max(axis=1)
    states = memory.parts["weights"] + memory.parts["gradients"] + memory.parts["optimizer"]
    at = np.arange(jobs.size), reserved.argmax(axis=1)
    return {
        "gemm_eff": stages.gemm_eff,
        "bubble_frac": parts["bubble"] / step,
        "stage_imbalance": total.max(axis=1) / (total.sum(axis=1) / jobs.pp),
        "host_gap_frac": parts["host"] / step,
        "tokens_per_expert": tokens_per_expert(jobs),
        "model_state_frac": states / np.maximum(allocated.max(axis=1), 1.0),
        "frag_frac": 1 - allocated[at] / np.maximum(fullest, 1.0),
        "mem_peak_frac": fullest / jobs.cluster.accelerator.memory_bytes,
    }
