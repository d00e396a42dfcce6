"""Plays one training step of a pipeline, pass by pass.

One process per stage works through its order and waits for the activations and gradients that its neighbours send
over links, one transfer a direction at a time. What a step does once comes before, after, and where all stages have
waited for one another, as the norm of all gradients needs it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import simpy

from simulator.events.orders import Group, Kind, Placement, Task, order
from simulator.job import Schedule

Parts = Sequence[tuple[str, Sequence[float]]]
"""Names and seconds by stage of what a step does once, in order."""

_Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Step:
    """One step of a pipeline of P stages. Seconds; sequences have one value per stage.

    Attributes:
        forward, backward: one micro-batch through all chunks of a stage; with DualPipe through one of its two stages.
        weight: the part of ``backward`` that takes the gradients of the weights.
        microbatches: per step.
        schedule: how they are ordered.  chunks: virtual stages per stage of a looped schedule.
        send: one transfer between neighbouring stages.
        blocking: a stage waits while it sends.
        before, after: done before the first forward and after the last backward of each stage.
        together: begun once all stages are there.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    weight: Sequence[float]
    microbatches: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    send: float = 0.0
    blocking: bool = False
    before: Parts = ()
    after: Parts = ()
    together: Parts = ()


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong.

    Attributes:
        slowness: factor on all that a stage does, one per stage; empty for none.
        jitter: standard deviation of the logarithm of every pass, whose mean stays.
        failure: (stage, seconds): it stops then, and with it the run.
        seed: of the jitter.
    """

    slowness: Sequence[float] = ()
    jitter: float = 0.0
    failure: tuple[int, float] | None = None
    seed: int = 0


class Recorded(NamedTuple):
    """One thing a stage did.

    Attributes:
        kind: a `Kind`, ``send``, or the name of a part of the step.
        chunk, microbatch: -1 where there is none.
        start, end: seconds.
        carries, to: what a send carries (a `Kind`), and the stage it goes to.
    """

    stage: int
    kind: str
    chunk: int
    microbatch: int
    start: float
    end: float
    carries: str = ""
    to: int = -1


@dataclass(frozen=True)
class Run:
    """What happened.

    Attributes:
        recorded: everything that was finished, in the order of its end.
        pipeline_seconds: end of the last pass.  seconds: end of the step, or the moment of the failure.
        failed_stage: the one that stopped, None otherwise.
    """

    recorded: tuple[Recorded, ...]
    pipeline_seconds: float
    seconds: float
    failed_stage: int | None


def play(step: Step, disturbance: Disturbance | None = None) -> Run:
    """One step, played once; the same arguments give the same run.

    Raises:
        ValueError: a number of stages or micro-batches that the schedule cannot work with.
    """
    _check(step)
    player = _Player(step, disturbance or Disturbance())
    return player.run()


def _check(step: Step) -> None:
    stages, count = len(step.forward), step.microbatches
    if stages < 1 or count < 1 or step.chunks < 1:
        raise ValueError(f"{stages} stages, {count} micro-batches, {step.chunks} chunks: each must be 1 or more")
    looped = step.schedule == Schedule.ONE_F_ONE_B and step.chunks > 1
    if looped and count > stages and count % stages:
        raise ValueError(f"{count} micro-batches: interleaving needs a multiple of the {stages} stages")
    full = step.schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V)
    if full and count < 2 * stages:
        raise ValueError(f"{count} micro-batches do not fill {stages} stages of DualPipe; {2 * stages} are needed")
    if step.schedule == Schedule.DUALPIPE and (stages % 2 or count % 2):
        raise ValueError(f"DualPipe needs even numbers, not {stages} stages and {count} micro-batches")


@dataclass
class _Player:
    step: Step
    disturbance: Disturbance
    env: simpy.Environment = field(default_factory=simpy.Environment)
    recorded: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        step = self.step
        self.stages = len(step.forward)
        self.placement = Placement.of(step.schedule, self.stages, step.chunks, step.microbatches)
        self.arrived: dict[tuple[bool, int, int], simpy.Event] = {}
        self.links: dict[tuple[int, int], simpy.Resource] = {}
        self.ready = [self.env.event() for _ in range(self.stages)]
        self.noise = [np.random.default_rng([self.disturbance.seed, stage]) for stage in range(self.stages)]

    def run(self) -> Run:
        """Play the step to its end, or to the failure of a stage."""
        stages = [self.env.process(self._stage(stage)) for stage in range(self.stages)]
        finished = simpy.AllOf(self.env, stages)
        failure = self.disturbance.failure
        if failure is None:
            self.env.run(until=finished)
        else:
            self.env.run(until=simpy.AnyOf(self.env, [finished, self.env.timeout(failure[1])]))
        failed = failure[0] if failure and not finished.triggered else None
        passes = [r.end for r in self.recorded if r.microbatch >= 0]
        return Run(tuple(self.recorded), max(passes, default=0.0), float(self.env.now), failed)

    def _stage(self, stage: int) -> _Process:
        step = self.step
        yield from self._once(stage, step.before)
        for group in order(step.schedule, stage, self.stages, step.chunks, step.microbatches):
            yield from self._work(stage, group)
        yield from self._once(stage, step.after)
        self.ready[stage].succeed()
        yield simpy.AllOf(self.env, self.ready)
        yield from self._once(stage, step.together)

    def _once(self, stage: int, parts: Parts) -> _Process:
        """Parts of the step that involve no micro-batch."""
        for name, seconds in parts:
            start = self.env.now
            yield self.env.timeout(seconds[stage] * self._slowness(stage))
            self.recorded.append(Recorded(stage, name, -1, -1, start, self.env.now))

    def _work(self, stage: int, group: Group) -> _Process:
        """Wait for what all tasks of the group need, do them, pass on what they made."""
        for task in group:
            needed = self._needed(stage, task)
            if needed is not None:
                yield needed
        for task in group:
            start = self.env.now
            yield self.env.timeout(self._seconds(stage, task))
            self.recorded.append(Recorded(stage, task.kind, task.chunk, task.microbatch, start, self.env.now))
        for task in group:
            if self.step.blocking:
                yield from self._pass_on(stage, task)
            else:
                self.env.process(self._pass_on(stage, task))

    def _needed(self, stage: int, task: Task) -> simpy.Event | None:
        """What must have arrived: the activation, or the gradient, which the last position makes itself."""
        position = self._position(stage, task)
        if task.kind == Kind.WEIGHT or (task.kind == Kind.FORWARD and position == 0):
            return None
        return self._arrival(task.kind == Kind.FORWARD, position, task.microbatch)

    def _pass_on(self, stage: int, task: Task) -> _Process:
        """Send what the task made to the stage that waits for it."""
        forward, position = task.kind == Kind.FORWARD, self._position(stage, task)
        route = self.placement.route(task.microbatch)
        target = position + (1 if forward else -1)
        if forward and target == len(route):
            self._arrival(False, position, task.microbatch).succeed()
        elif task.kind != Kind.WEIGHT and target >= 0:
            if route[target] != stage and self.step.send > 0:
                yield from self._send(stage, route[target], task)
            self._arrival(forward, target, task.microbatch).succeed()

    def _send(self, stage: int, target: int, task: Task) -> _Process:
        """One transfer; the link carries one at a time in each direction."""
        link = self.links.setdefault((stage, target), simpy.Resource(self.env, capacity=1))
        with link.request() as turn:
            yield turn
            start = self.env.now
            yield self.env.timeout(self.step.send)
        sent = Recorded(stage, "send", task.chunk, task.microbatch, start, self.env.now, task.kind, target)
        self.recorded.append(sent)

    def _arrival(self, forward: bool, position: int, microbatch: int) -> simpy.Event:
        return self.arrived.setdefault((forward, position, microbatch), self.env.event())

    def _position(self, stage: int, task: Task) -> int:
        return self.placement.position(stage, task.chunk)

    def _slowness(self, stage: int) -> float:
        slowness = self.disturbance.slowness
        return slowness[stage] if slowness else 1.0

    def _seconds(self, stage: int, task: Task) -> float:
        """One pass: a share of the stage, or with DualPipe all of the stage that the micro-batch is in."""
        step, spread = self.step, self.disturbance.jitter
        of, share = stage, 1 / (len(self.placement.routes[0]) // self.stages)
        if len(self.placement.routes) > 1:
            of = self._position(stage, task)
        whole = {
            Kind.FORWARD: step.forward[of],
            Kind.BACKWARD: step.backward[of],
            Kind.INPUT: step.backward[of] - step.weight[of],
            Kind.WEIGHT: step.weight[of],
        }[task.kind]
        noise = float(np.exp(spread * self.noise[stage].standard_normal() - spread**2 / 2)) if spread else 1.0
        return whole * share * noise * self._slowness(stage)
