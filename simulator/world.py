"""One simulated truth: physics no tuner can read, noise, failures, and defects nobody has listed.

Everything is a pure function of (world seed, label, job): a run that is repeated under its label repeats exactly.
Imports of this module are forbidden to tuners.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from simulator.chunks import chunks
from simulator.curves import Signature, curves
from simulator.draws import generator
from simulator.hardware import ClusterSpec
from simulator.job import Bools, Dispatcher, Floats, Graph, Jobs, has
from simulator.memory import peak_memory
from simulator.physics import Physics
from simulator.posterior import POSTERIOR
from simulator.residuals import residuals
from simulator.step import BREAKDOWN, StepEstimate, simulate_step, step_seconds

Ending = Literal["ok", "oom", "hang", "timeout", "diverged", "node_failure", "preempted"]

# Relative standard deviations. Source: NVIDIA-NeMo/Megatron-Bridge performance summary (release to release 1.3 %,
# a repeated configuration 0.4 %, steps of one run 0.05-0.5 %).
RUN_NOISE, STEP_NOISE, MEMORY_NOISE, PROFILE_NOISE = 0.004, 0.005, 0.002, 0.02
LONG_STEP_CHANCE, SLOW_NODE_CHANCE = 0.01, 0.01
TRANSIENT = np.array([1.8, 0.15, 0.04])
"""Extra time of the first steps: allocator, autotuning, first communication."""

# Per node and hour. Source: Llama 3 (arXiv 2407.21783): 419 unexpected interruptions of 2,048 nodes in 54 days are
# 1.6e-4; smaller clusters are looked after less.
FAILURES: dict[Ending, float] = {"node_failure": 8e-4, "preempted": 4e-4, "hang": 1e-4}
WATCHDOG_S = 600.0

SOFT_ZONE = 0.96
"""From this share of the memory on the allocator flushes its cache and retries."""

STACKS = ("0.16.0", "0.17.0", "0.18.0")
HIDDEN_CHANCE = 0.35

TRIGGERS: Mapping[str, Callable[..., Bools]] = {
    "ep_overlap and delay_wgrad": lambda ep_overlap, delay_wgrad: ep_overlap & delay_wgrad,
    "deepep and mbs > 1": lambda dispatcher, mbs: (dispatcher == int(Dispatcher.DEEPEP)) & (mbs > 1),
    "hybridep": lambda dispatcher: dispatcher == int(Dispatcher.HYBRIDEP),
    "graph of the router with deepep": lambda cuda_graph, dispatcher: (
        has(cuda_graph, Graph.MOE_ROUTER) & (dispatcher == int(Dispatcher.DEEPEP))
    ),
    "tp_comm_overlap and cp": lambda tp_comm_overlap, cp: tp_comm_overlap & (cp > 1),
    "shared_expert_overlap and interleaving": lambda shared_expert_overlap, vpp: shared_expert_overlap & (vpp > 1),
    "optimizer_offload": lambda optimizer_offload: optimizer_offload > 0,
    "router_fusion and ep > 8": lambda router_fusion, ep: router_fusion & (ep > 8),
}
"""Lever combinations that a world may have a defect in, by description: functions of columns of `Jobs`, which are
their parameters, true where a job has the combination."""


@dataclass(frozen=True)
class Conditions:
    """How harsh worlds are: factors on their spreads and rates. 1 is what was calibrated or published, 0 is none of it.

    Attributes:
        physics: on the spread of the physics; it acts as 2 beyond 2, where the constants leave their ranges.
        residuals: on what the physics leaves out of step time and memory.
        noise: on the spread between runs and between steps of one job.
        failures: on the rate of failures, and on the chance of a slow node, which is a failure half-way.
        defects: on the chance of a hidden defect.

    Raises:
        ValueError: a factor that is negative or no number.
    """

    physics: float = 1.0
    residuals: float = 1.0
    noise: float = 1.0
    failures: float = 1.0
    defects: float = 1.0

    def __post_init__(self) -> None:
        for factor in fields(self):
            value = getattr(self, factor.name)
            if not 0 <= value < np.inf:
                raise ValueError(f"condition {factor.name} is {value}; give a number, 0 or more")


USUAL = Conditions()
"""The conditions of a study that does not name others."""


@dataclass(frozen=True)
class HiddenDefect:
    """A defect that is on no list: it shows in the loss or in the gradient norm, nowhere else."""

    trigger: str
    signature: Signature

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `Jobs` that set it off."""
        return tuple(inspect.signature(TRIGGERS[self.trigger]).parameters)

    def active(self, jobs: Jobs) -> Bools:
        """Where jobs set it off, shape (B,)."""
        return TRIGGERS[self.trigger](**{name: getattr(jobs, name) for name in self.columns})


@dataclass(frozen=True)
class WorldRun:
    """What happened. ``elapsed_s`` is charged; arrays hold finished steps only.

    Attributes:
        status, message: how it ended, and the line a log would end with.
        startup_s, elapsed_s: seconds.
        step_times_s, loss, grad_norm: shape (T,), T finished steps.
        peak_reserved_bytes: per stage, shape (P,); what a log reports of a finished run.
        breakdown_s: seconds of a mean step by part, as a profiler sees them.
        diagnostics: ratios, see `simulator.step.StepEstimate`.
    """

    status: Ending
    message: str
    startup_s: float
    elapsed_s: float
    step_times_s: Floats
    loss: Floats
    grad_norm: Floats
    peak_reserved_bytes: Floats
    breakdown_s: dict[str, float]
    diagnostics: dict[str, float]


@dataclass(frozen=True)
class Truth:
    """What a batch of jobs would show in long runs without failures.

    Attributes:
        step_time_s: mean seconds of a step once it is steady, shape (B,): what the physics leaves out is in it, and
            the allocator's retries where memory is nearly full; noise, slow nodes and single long steps are not.
        peak_reserved_bytes: per stage without noise, shape (B, P), 0 beyond a job's last stage.
        fits: whether every stage has the memory, shape (B,).
    """

    step_time_s: Floats
    peak_reserved_bytes: Floats
    fits: Bools


@dataclass(frozen=True)
class World:
    """One draw of everything that differs between two clusters of one name.

    Attributes:
        seed: of every draw. cluster: the hardware.
        physics: the truth behind step times and memory.
        conditions: factors on spreads and rates.
        mcore: release of the stack that is installed.
        hidden: defects nobody has listed.
    """

    seed: int
    cluster: ClusterSpec
    physics: Physics
    conditions: Conditions
    mcore: str
    hidden: tuple[HiddenDefect, ...]

    @classmethod
    def draw(cls, seed: int, cluster: ClusterSpec, *, conditions: Conditions = USUAL) -> World:
        """The world of a seed on a cluster."""
        physics = POSTERIOR.draw(generator(seed, "physics"), min(conditions.physics, 2.0))
        stack = generator(seed, "stack")
        mcore = str(stack.choice(STACKS))
        hidden = (_hidden_defect(stack),) if stack.random() < HIDDEN_CHANCE * conditions.defects else ()
        return cls(seed, cluster, physics, conditions, mcore, hidden)

    def startup_bound_s(self, job: Jobs) -> float:
        """Seconds start-up takes at most; scheduling, loading, and capturing graphs or compiling."""
        return 1.5 * self._nominal_startup_s(job)

    def truth(self, jobs: Jobs) -> Truth:
        """What the jobs would show in long runs; `run` draws around it."""
        times, stages = [], []
        for chunk in chunks(jobs.size):
            some = jobs.take(chunk)
            reserved = peak_memory(some, self.physics.memory).peak_reserved_bytes
            base, memory = self._true(some, step_seconds(some, self.physics), reserved)
            times.append(base * self.retries(memory.max(axis=1)))
            stages.append(memory)
        memory = np.concatenate(stages)
        fits = memory.max(axis=1) <= self.cluster.accelerator.memory_bytes
        return Truth(np.concatenate(times), memory, fits)

    def run(
        self,
        job: Jobs,
        *,
        label: str,
        steps: int,
        objective: Mapping[str, str],
        faults: Sequence[Signature] = (),
        limit_s: float | None = None,
    ) -> WorldRun:
        """Run one job and see what happens.

        Args:
            job: a batch of one.
            label: identity of the run; its noise and its failures belong to it.
            steps: steps asked for.
            objective: settings of the objective with their values.
            faults: signatures of the known defects that are active.
            limit_s: the run is ended after so many seconds.
        """
        random = generator(self.seed, "run", label)
        physics = simulate_step(job, self.physics)
        base, reserved = self._true(job, physics.step_time_s, physics.peak_reserved_bytes)
        memory = reserved[0, : job.pp[0]] * np.exp(self.conditions.noise * MEMORY_NOISE * random.normal())
        startup = self._nominal_startup_s(job) * float(np.clip(np.exp(0.15 * random.normal()), 0.7, 1.5))
        times = self._step_times(float((base * self.retries(memory.max()))[0]), steps, random)
        faults = [*faults, *(d.signature for d in self.hidden if d.active(job)[0])]
        loss, norm = curves(self.seed, job, label, steps=steps, objective=objective, faults=faults)
        failures = {kind: startup + self._hours_to(rate, random) * 3600 for kind, rate in FAILURES.items()}
        ends = startup + np.cumsum(times)
        ends[ends > failures["hang"]] = np.inf
        status, elapsed, message = self._ending(memory, loss, ends, failures, limit_s)
        done = int((ends <= elapsed).sum()) - (status == "diverged") if status != "oom" else 0
        timed = times[min(3, max(done - 1, 0)) : done]
        return WorldRun(
            status=status,
            message=message,
            startup_s=min(startup, elapsed),
            elapsed_s=elapsed,
            step_times_s=times[:done],
            loss=loss[:done],
            grad_norm=norm[:done],
            peak_reserved_bytes=memory if done else np.zeros(0),
            breakdown_s=_profile(physics, float(timed.mean()), random) if done else {},
            diagnostics={name: float(value[0]) for name, value in physics.diagnostics.items()} if done else {},
        )

    def _nominal_startup_s(self, job: Jobs) -> float:
        graphs = 20.0 * (job.cuda_graph[0] != Graph.NONE) + 40.0 * bool(job.compiled[0])
        return float(min(45.0 + 8.0 * np.log2(self.cluster.nodes + 1) + 0.15 * job.model.layers + graphs, 160.0))

    def _true(self, jobs: Jobs, step_s: Floats, reserved: Floats) -> tuple[Floats, Floats]:
        """Step time with memory to spare, (B,), and reserved bytes, (B, P), from what the physics says of them."""
        time, memory = np.exp(self.conditions.residuals * residuals(self.seed, jobs))
        return step_s * time, reserved * memory[:, None]

    def retries(self, fullest: Floats) -> Floats:
        """Step time over that with memory to spare where the fullest stage reserves so much; never falls with it."""
        full = fullest / self.cluster.accelerator.memory_bytes
        return np.asarray(1 + 0.3 * np.clip((full - SOFT_ZONE) / (1 - SOFT_ZONE), 0, 1) ** 2)

    def _step_times(self, base: float, steps: int, random: np.random.Generator) -> Floats:
        """Seconds of each step of a run whose true step takes ``base``, shape (steps,)."""
        slow_chance = 1 - (1 - min(SLOW_NODE_CHANCE * self.conditions.failures, 1.0)) ** np.sqrt(self.cluster.nodes)
        base *= 1 + (random.random() < slow_chance) * random.uniform(0.05, 0.25)
        noise = RUN_NOISE * random.normal() + STEP_NOISE * random.normal(size=steps)
        times = base * np.exp(self.conditions.noise * noise)
        long = random.random(steps) < LONG_STEP_CHANCE
        times *= 1 + long * random.exponential(0.3, steps)
        times[: TRANSIENT.size] *= 1 + TRANSIENT[:steps]
        return np.asarray(times)

    def _hours_to(self, rate: float, random: np.random.Generator) -> float:
        """Hours until a failure of so many per node and hour."""
        return float(random.exponential() / max(rate * self.conditions.failures * self.cluster.nodes, 1e-12))

    def _ending(
        self, memory: Floats, loss: Floats, ends: Floats, failures: Mapping[Ending, float], limit_s: float | None
    ) -> tuple[Ending, float, str]:
        """(status, seconds charged, last line): whatever comes first."""
        events: list[tuple[float, Ending, str]] = [(float(ends[-1]), "ok", "")]
        stage, capacity = int(memory.argmax()), self.cluster.accelerator.memory_bytes
        if memory[stage] > capacity:
            events.append((float(ends[0]), "oom", _oom_line(stage, float(memory[stage]), capacity)))
        broken = np.flatnonzero(np.isnan(loss))
        if broken.size:
            line = f"found NaN in local grad norm for bucket #0 at iteration {broken[0] + 1}"
            events.append((float(ends[broken[0]]), "diverged", line))
        events += [(at + WATCHDOG_S * (kind == "hang"), kind, _FAILURE_LINES[kind]) for kind, at in failures.items()]
        if limit_s is not None:
            events.append((limit_s, "timeout", "DUE TO TIME LIMIT"))
        at, status, line = min(events, key=lambda event: event[0])
        return status, at, line


_FAILURE_LINES: Mapping[Ending, str] = {
    "node_failure": "srun: error: Node failure on node-3",
    "preempted": "slurmstepd: error: *** STEP CANCELLED DUE TO PREEMPTION ***",
    "hang": "Watchdog caught collective operation timeout: WorkNCCL(OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=600000)",
}


def _hidden_defect(random: np.random.Generator) -> HiddenDefect:
    """One unlisted defect: in the loss, in the gradient norm, or in both."""
    trigger = str(random.choice(list(TRIGGERS)))
    in_loss, in_norm = [(True, False), (False, True), (True, True)][random.integers(3)]
    bias = random.uniform(2e-3, 8e-3) if in_loss else 0.0
    norm = float(random.choice([0.5, 0.75, 1.35, 2.0])) if in_norm else 1.0
    return HiddenDefect(trigger, Signature(bias=float(bias), grad_norm=norm))


def _profile(physics: StepEstimate, step_s: float, random: np.random.Generator) -> dict[str, float]:
    """The parts of a mean step as a profiler sees them: a few percent off, summing to the step."""
    parts = {name: float(physics.breakdown_s[name][0]) for name in BREAKDOWN}
    seen = {name: value * float(np.exp(PROFILE_NOISE * random.normal())) for name, value in parts.items()}
    scale = step_s / sum(seen.values())
    return {name: value * scale for name, value in seen.items()}


def _oom_line(stage: int, needed: float, capacity: float) -> str:
    gib = 2**30
    missing = max((needed - capacity) / gib, 0.01)
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {missing:.2f} GiB. "
        f"GPU 0 has a total capacity of {capacity / gib:.2f} GiB of which 0.02 GiB is free (pipeline stage {stage})."
    )
