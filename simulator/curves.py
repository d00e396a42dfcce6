"""Loss curves of simulated runs: what two recipes share cancels in their difference, what they do not stays.

The log-loss of a run is a base curve plus one drift per feature of the run. A drift is keyed by the feature's value,
so two runs of one recipe differ only by the noise of the run, and two recipes only by the features that differ.
Sizes are those of recorded Megatron-LM test curves: overlap and recomputation 1e-4, layouts and fused kernels up to
2e-3, dispatchers up to 5e-3, FP8 about 1e-2 of the loss within 25 steps.

**Source:** NVIDIA/Megatron-LM@d98e8a64 tests/functional_tests/test_cases (golden values), #1603 (dispatchers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simulator.draws import generator
from simulator.job import Floats, Jobs, Precision

HORIZON = 20
"""Drifts are shaped over at least this many steps, so that a shorter run is a prefix of a longer one."""

LAYOUT = ("tp", "pp", "cp", "ep", "etp", "mbs", "sequence_parallel", "zero_stage", "optimizer_instances", "seq_len")
KERNELS = (
    "tp_comm_overlap", "grouped_gemm", "permute_fusion", "router_fusion", "cross_entropy_fusion", "standard_fusions",
    "fused_attention", "fp8_attention", "fused_experts", "nvls", "compiled",
)  # fmt: skip
PRECISION = ("precision", "fp8_param_gather")
STATES = ("grad_reduce_fp32", "main_grad_bytes", "main_param_bytes", "moment_bytes")
REFERENCE = {
    PRECISION: dict(zip(PRECISION, (Precision.BF16, False), strict=True)),
    STATES: dict(zip(STATES, (True, 4.0, 4.0, 8.0), strict=True)),
}
"""BF16 with FP32 states: values that have no drift of their own."""
DISPATCHER = ("dispatcher",)
SCHEDULE = (
    "vpp", "recompute", "recompute_layers", "cuda_graph", "offload", "max_connections", "bucket_bytes",
    "overlap_grad_reduce", "overlap_param_gather", "ep_overlap", "delay_wgrad", "shared_expert_overlap", "overlap_p2p",
    "optimizer_offload", "sm_margin",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How far one feature's value may move a curve, all relative: step 1, largest and mean later, gradient norm."""

    step_1: float
    largest: float
    bias: float
    norm: float


RUN = Size(1e-6, 5e-5, 1e-5, 2e-4)
"""Noise of the run itself: two runs of one recipe."""

SIZES: Mapping[tuple[str, ...], Size] = {
    SCHEDULE: Size(1e-6, 5e-5, 1e-5, 2e-4),
    LAYOUT: Size(2e-5, 5e-4, 5e-5, 3e-3),
    KERNELS: Size(2e-5, 3e-4, 3e-5, 2e-3),
    DISPATCHER: Size(2e-5, 1.2e-3, 2e-4, 2e-3),
    PRECISION: Size(2e-3, 4e-3, 1e-3, 3e-2),
    STATES: Size(1e-6, 8e-5, 4e-5, 2e-3),  # gradients and updates alone: nothing of it is in the first loss
}
OBJECTIVE = Size(1e-3, 1e-2, 6e-3, 5e-2)
"""Settings of the objective; between 30 % and 100 % of it, and at step 1 only where the first loss depends on them."""


@dataclass(frozen=True)
class Signature:
    """What a fault shows: relative loss at step 1 and on average, a gradient-norm factor, the step of the first NaN."""

    step_1: float = 0.0
    bias: float = 0.0
    grad_norm: float = 1.0
    diverges_at: int = 0


def curves(
    seed: int,
    job: Jobs,
    label: str,
    *,
    steps: int,
    objective: Mapping[str, str],
    faults: Sequence[Signature] = (),
) -> tuple[Floats, Floats]:
    """Loss and gradient norm of a run from random weights, each of shape (steps,), nan from a divergence on.

    Args:
        seed: the world's. job: a batch of one. label: identity of the run, the key of its noise.
        objective: settings of the objective with their values; every value has its own effect.
        faults: signatures of the defects that are active in this job.
    """
    horizon = max(steps, HORIZON)
    loss, norm = _base(seed, job.model.vocab, horizon)
    features = [(_value(job, names), size) for names, size in SIZES.items()]
    drifts = [_drift(seed, "drift", value, size, horizon) for value, size in features if value]
    drifts.append(_drift(seed, "noise", label, RUN, horizon))
    drifts.append(_objective_drift(seed, tuple(sorted(objective.items())), horizon))
    log_loss = np.log(loss) + sum(d for d, _ in drifts)
    log_norm = np.log(norm) + sum(n for _, n in drifts)
    for fault in faults:
        log_loss += np.where(np.arange(horizon) == 0, fault.step_1, 2 * fault.bias * np.arange(horizon) / horizon)
        log_norm += np.log(fault.grad_norm)
    diverged = np.arange(1, horizon + 1) >= min((f.diverges_at for f in faults if f.diverges_at), default=horizon + 1)
    loss, norm = np.exp(log_loss), np.exp(log_norm)
    loss[diverged], norm[diverged] = np.nan, np.nan
    return loss[:steps], norm[:steps]


@lru_cache(maxsize=64)
def _base(seed: int, vocab: int, horizon: int) -> tuple[Floats, Floats]:
    """The curve everybody shares: from ln V downwards, with the ups and downs of the batches."""
    t = np.arange(horizon)
    batches = generator(seed, "batches").normal(size=(2, horizon))
    start = np.log(max(vocab, 2)) + 0.05
    loss = start * (1 - 0.28 * (1 - np.exp(-t / 14))) + 0.01 * batches[0] * (t > 0)
    return loss, (0.8 + 2.5 * np.exp(-t / 8)) * np.exp(0.05 * batches[1])


def _value(job: Jobs, names: tuple[str, ...]) -> str:
    """A feature's value as text; '' for the reference."""
    values = {name: getattr(job, name)[0].item() for name in names}
    if values == REFERENCE.get(names):
        return ""
    return ",".join(f"{name}={value}" for name, value in values.items())


@lru_cache(maxsize=1024)
def _drift(seed: int, purpose: str, name: str, size: Size, horizon: int) -> tuple[Floats, Floats]:
    """Rounding that grows apart: (log-loss, log-norm), bounded by ``size``, each of shape (horizon,).

    Runs of one world have most features in common, so the drifts are kept; they must not be written to.
    """
    random, steps = generator(seed, purpose, name), np.arange(1, horizon + 1)
    walk = random.normal(size=horizon)
    for t in range(1, horizon):
        walk[t] += 0.5 * walk[t - 1]
    walk *= np.sqrt(np.minimum(steps / HORIZON, 1.0))
    walk -= walk[1:].mean()
    envelope = (size.largest - size.bias) * np.sqrt(np.minimum(steps / HORIZON, 1.0))
    walk *= random.uniform(0.4, 1.0) * (envelope / np.abs(walk))[1:].min()
    log_loss = walk + random.uniform(-1, 1) * size.bias
    log_loss[0] = random.uniform(-1, 1) * size.step_1
    return log_loss, np.full(horizon, random.uniform(-1, 1) * size.norm)


@lru_cache(maxsize=64)
def _objective_drift(seed: int, objective: tuple[tuple[str, str], ...], horizon: int) -> tuple[Floats, Floats]:
    """What settings and values of the objective add up to; all runs of a campaign have them in common."""
    parts = [_setting_drift(seed, key, value, horizon) for key, value in objective]
    return sum((d for d, _ in parts), np.zeros(horizon)), sum((n for _, n in parts), np.zeros(horizon))


def _setting_drift(seed: int, key: str, value: str, horizon: int) -> tuple[Floats, Floats]:
    """Another objective: a one-sided ramp, and another loss or gradient at the first step."""
    random = generator(seed, "objective", key, value)
    side, share = random.choice([-1.0, 1.0]), random.uniform(0.3, 1.0)
    ramp = side * share * 2 * OBJECTIVE.bias * np.arange(horizon) / horizon
    ramp[0] = random.uniform(-1, 1) * OBJECTIVE.step_1
    return ramp, np.full(horizon, random.uniform(-1, 1) * OBJECTIVE.norm)
