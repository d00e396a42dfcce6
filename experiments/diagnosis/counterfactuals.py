"""What a step would save without one of its terms: the same job in the same world, simulated again without it.

This is where the truth of the confusion matrix comes from. It knows nothing of the diagnosis: a term is taken out of
the physics itself, and whatever hangs on it (what is hidden beneath it, the bubble it lengthens) changes too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from simulator import data_parallel, kernels, stages, step
from simulator.job import Floats, Jobs, Recompute
from simulator.kernels import GemmRates
from simulator.memory import peak_memory
from simulator.physics import Physics
from simulator.pipeline import pipeline_times
from simulator.stages import StageTimes
from simulator.step import step_seconds
from simulator.world import World

WORTH = 0.05
"""Fraction of a step below which a term is no bottleneck: a gain of that size takes luck to find and effort to keep."""

CLEARLY = 1.5
"""A term dominates when it saves this many times what any other saves, and as many times `WORTH`; where no term is
worth anything, computation itself does."""

Replacement = tuple[Any, str, Callable[..., Any]]


@dataclass(frozen=True)
class Without:
    """One term taken out.

    Attributes:
        functions: (module, name, what is called instead).
        constants: of the physics, by name.
        columns: of the jobs, by name.
    """

    functions: tuple[Replacement, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)

    def seconds(self, job: Jobs, physics: Physics) -> float:
        """The step of a batch of one without the term."""
        changed = {name: np.full_like(getattr(job, name), value) for name, value in self.columns.items()}
        with ExitStack() as replaced:
            for module, name, function in self.functions:
                replaced.enter_context(patch.object(module, name, function))
            return float(step_seconds(replace(job.take([0]), **changed), replace(physics, **self.constants))[0])


def _free(jobs: Jobs, *_: Any) -> Floats:
    return np.zeros(jobs.size)


def _free_pair(jobs: Jobs, *_: Any) -> tuple[Floats, Floats]:
    return np.zeros(jobs.size), np.zeros(jobs.size)


_PIPELINE, _STAGES, _RATES = pipeline_times, stages.stage_times, kernels.fitted_rates


def _no_bubble(jobs: Jobs, passes: Any, send: Floats) -> tuple[Floats, Floats]:
    """The slowest stage never waits for another."""
    _, sends = _PIPELINE(jobs, passes, send)
    return jobs.num_microbatches * passes.total.max(axis=1), sends


def _even_stages(jobs: Jobs, physics: Physics) -> StageTimes:
    """Every stage takes the mean of all."""
    times = _STAGES(jobs, physics)
    exists = times.total > 0
    even = {
        name: np.where(exists, (getattr(times, name).sum(axis=1) / jobs.pp)[:, None], 0.0)
        for name in ("compute", "tp", "ep", "cp", "host", "forward", "backward", "weight_gradients")
    }
    return replace(times, **even)


def _sound_products(*args: Any, **named: Any) -> GemmRates:
    """Matrix products without what small ones lose: fixed parts, fill and drain, half-filled tiles, traffic."""
    none = np.zeros(())
    return replace(_RATES(*args, **named), tau_s=none, k0=none, rows=none, area=none, seconds_per_byte=none)


TERMS: Mapping[str, Without] = {
    "exposed_tp_comm": Without(((stages, "tensor_seconds", _free_pair),)),
    "exposed_ep_a2a": Without(((stages, "dispatch_seconds", _free),)),
    "exposed_cp_comm": Without(((stages, "ring_attention_seconds", _free),)),
    "exposed_pp_p2p": Without(((step, "send_seconds", _free),)),
    "exposed_dp_comm": Without(
        tuple((data_parallel, name, _free) for name in ("_reduce_seconds", "_gather_seconds", "_broadcast_seconds"))
    ),
    "pipeline_bubble": Without(((step, "pipeline_times", _no_bubble),)),
    "stage_imbalance": Without(((step, "stage_times", _even_stages),)),
    "launch_bound": Without(constants={"launch_s": 0.0, "graph_launch_s": 0.0, "sync_s": 0.0, "step_fixed_s": 0.0}),
    "low_gemm_efficiency": Without(
        ((kernels, "fitted_rates", _sound_products),), {"expert_gemm_s": 0.0, "expert_cast_s": 0.0}
    ),
    "expert_imbalance": Without(constants={"imbalance_per_doubling": 0.0}),
    "recompute_heavy": Without(columns={"recompute": int(Recompute.NONE)}),
}
"""Every term that can be taken out, named by the symptom that should come first where it dominates."""


def saved(job: Jobs, world: World) -> dict[str, float]:
    """Fraction of a world's step that each term costs a batch of one, and what the allocator's retries do."""
    base = float(step_seconds(job.take([0]), world.physics)[0])
    found = {name: 1 - without.seconds(job, world.physics) / base for name, without in TERMS.items()}
    fullest = world.truth(job).peak_reserved_bytes.max(axis=1)
    return {**found, "borderline_memory": float(1 - 1 / world.retries(fullest)[0])}


def dominant(savings: Mapping[str, float]) -> str | None:
    """The term that dominates, ``compute_bound`` where none is worth removing; None where it is not clear."""
    first, second = sorted(savings, key=lambda name: -savings[name])[:2]
    if savings[first] < WORTH:
        return "compute_bound"
    clear = savings[first] >= CLEARLY * max(savings[second], WORTH)
    return first if clear else None


def dominant_memory(job: Jobs, world: World) -> str | None:
    """The kind of part that dominates the fullest stage of a batch of one in a world; None where it is not clear.

    Logits are what the stage holds less without bytes for them.
    """
    memory = world.physics.memory
    none = replace(memory, logit_bytes=0.0, logit_bytes_fused=0.0, logit_kept_bytes=0.0, logit_kept_bytes_fused=0.0,
                   logit_stale_bytes=0.0)  # fmt: skip
    held = peak_memory(job, memory)
    stage = int(held.peak_reserved_bytes[0].argmax())
    less = peak_memory(job.take([0]), none).peak_allocated_bytes[0, stage]
    parts = {name: float(part[0]) for name, part in held.parts.items()}
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    logits = float(held.peak_allocated_bytes[0, stage] - less)
    kinds = {"oom_first_step": states, "oom_last_stage": logits, "oom_forward": sum(parts.values()) - states - logits}
    first, second = sorted(kinds, key=lambda name: -kinds[name])[:2]
    return first if kinds[first] >= CLEARLY * kinds[second] else None
