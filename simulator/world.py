"""One simulated truth: physics no tuner can read, noise, failures, and defects nobody has listed.

Everything is a pure function of (world seed, label, job): a run that is repeated under its label repeats exactly.
Imports of this module are forbidden to tuners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from simulator.curves import Signature, curves
from simulator.draws import generator
from simulator.hardware import ClusterSpec
from simulator.job import Dispatcher, Floats, Graph, Jobs
from simulator.physics import Physics
from simulator.posterior import POSTERIOR
from simulator.step import BREAKDOWN, StepEstimate, simulate_step

Ending = Literal["ok", "oom", "hang", "timeout", "diverged", "node_failure", "preempted"]

# Relative standard deviations. Source: NVIDIA-NeMo/Megatron-Bridge performance summary (release to release 1.3 %,
# a repeated configuration 0.4 %, steps of one run 0.05-0.5 %). Residuals: prior, about what a calibrated model
# leaves between the layouts of one model on one accelerator, beyond a draw of its constants.
LAYOUT_RESIDUAL, JOB_RESIDUAL, MEMORY_RESIDUAL = 0.025, 0.012, 0.025
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

Trigger = Callable[[Jobs], bool]
TRIGGERS: Mapping[str, Trigger] = {
    "ep_overlap and delay_wgrad": lambda j: bool(j.ep_overlap[0] and j.delay_wgrad[0]),
    "deepep and mbs > 1": lambda j: bool(j.dispatcher[0] == Dispatcher.DEEPEP and j.mbs[0] > 1),
    "hybridep": lambda j: bool(j.dispatcher[0] == Dispatcher.HYBRIDEP),
    "graph of the router with deepep": lambda j: bool(
        j.cuda_graph[0] & Graph.MOE_ROUTER and j.dispatcher[0] == Dispatcher.DEEPEP
    ),
    "tp_comm_overlap and cp": lambda j: bool(j.tp_comm_overlap[0] and j.cp[0] > 1),
    "shared_expert_overlap and interleaving": lambda j: bool(j.shared_expert_overlap[0] and j.vpp[0] > 1),
    "optimizer_offload": lambda j: bool(j.optimizer_offload[0] > 0),
    "router_fusion and ep > 8": lambda j: bool(j.router_fusion[0] and j.ep[0] > 8),
}
"""Lever combinations that a world may have a defect in, by description."""


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
        truth = simulate_step(job, self.physics)
        memory = self._memory(job, truth, random)
        startup = self._nominal_startup_s(job) * float(np.clip(np.exp(0.15 * random.normal()), 0.7, 1.5))
        times = self._step_times(job, truth, memory, steps, random)
        faults = [*faults, *(d.signature for d in self.hidden if TRIGGERS[d.trigger](job))]
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
            breakdown_s=_profile(truth, float(timed.mean()), random) if done else {},
            diagnostics={name: float(value[0]) for name, value in truth.diagnostics.items()} if done else {},
        )

    def _nominal_startup_s(self, job: Jobs) -> float:
        graphs = 20.0 * (job.cuda_graph[0] != Graph.NONE) + 40.0 * bool(job.compiled[0])
        return float(min(45.0 + 8.0 * np.log2(self.cluster.nodes + 1) + 0.15 * job.model.layers + graphs, 160.0))

    def _residual(self, job: Jobs, purpose: str, layout_sd: float, job_sd: float) -> float:
        """What the physics leaves out for this job: one part by layout, one by everything, log-normal."""
        layout = _text(job, ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "stage_layers"))
        everything = _text(job, [f.name for f in fields(job) if f.name not in ("model", "cluster")])
        shared = generator(self.seed, purpose, job.model.name, layout).normal()
        own = generator(self.seed, purpose, job.model.name, everything).normal()
        return float(np.exp(self.conditions.residuals * (layout_sd * shared + job_sd * own)))

    def _memory(self, job: Jobs, truth: StepEstimate, random: np.random.Generator) -> Floats:
        """Reserved bytes per stage, shape (pp,)."""
        residual = self._residual(job, "memory", MEMORY_RESIDUAL, MEMORY_RESIDUAL / 2)
        stages = truth.peak_reserved_bytes[0, : job.pp[0]]
        return np.asarray(stages * residual * np.exp(self.conditions.noise * MEMORY_NOISE * random.normal()))

    def _step_times(
        self, job: Jobs, truth: StepEstimate, memory: Floats, steps: int, random: np.random.Generator
    ) -> Floats:
        """Seconds of each step, shape (steps,)."""
        base = float(truth.step_time_s[0]) * self._residual(job, "time", LAYOUT_RESIDUAL, JOB_RESIDUAL)
        full = memory.max() / self.cluster.accelerator.memory_bytes
        base *= 1 + 0.3 * float(np.clip((full - SOFT_ZONE) / (1 - SOFT_ZONE), 0, 1)) ** 2
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


def _text(job: Jobs, names: Sequence[str]) -> str:
    return "|".join(f"{name}={getattr(job, name)[0].tolist()}" for name in names)


def _profile(truth: StepEstimate, step_s: float, random: np.random.Generator) -> dict[str, float]:
    """The parts of a mean step as a profiler sees them: a few percent off, summing to the step."""
    parts = {name: float(truth.breakdown_s[name][0]) for name in BREAKDOWN}
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
