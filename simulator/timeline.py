"""The timeline of one training step: what every pipeline stage does when, as a trace; `simulator.picture` draws it.

The step is played by `simulator.events` with the times that `simulator.step` prices. One with very many passes is
played with fewer micro-batches, and the steady state in between is left out at its length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import send_seconds
from simulator.data_parallel import data_parallel
from simulator.events import Recorded, Step, play
from simulator.job import Jobs, Schedule
from simulator.physics import Physics
from simulator.pipeline import Passes, blocks, pipeline_times
from simulator.posterior import DEFAULT_PHYSICS
from simulator.stages import stage_times
from simulator.step import pace, simulate_step

_MOST_PASSES = 12_000  # that are played where the schedule allows so few: about a second


@dataclass(frozen=True)
class Timeline:
    """One step of one job.

    Attributes:
        recorded: everything drawn, seconds from the start of the step; micro-batches have the numbers of the job.
        stages, microbatches, schedule: of the job.
        seconds: of the step as played, with what is left out.  predicted_seconds: as `simulate_step` has it.
        bubble: share of the step in which the slowest stage waits for others.
        cut: start and end of the steady state that is left out; None where everything is drawn.
        left_out: micro-batches that are not drawn.
    """

    recorded: tuple[Recorded, ...]
    stages: int
    microbatches: int
    schedule: Schedule
    seconds: float
    predicted_seconds: float
    bubble: float
    cut: tuple[float, float] | None
    left_out: int


def timeline(jobs: Jobs, physics: Physics = DEFAULT_PHYSICS) -> Timeline:
    """The step of a batch of one job.

    Raises:
        ValueError: more than one job; or whatever `simulate_step` refuses.
    """
    if jobs.size != 1:
        raise ValueError(f"a timeline shows one job, not {jobs.size}; take one of them")
    estimate = simulate_step(jobs, physics)
    predicted = float(estimate.step_time_s[0])
    parts = {name: float(seconds[0]) for name, seconds in estimate.breakdown_s.items()}
    microbatches, drawn = int(jobs.num_microbatches[0]), _drawn(jobs)
    _, seconds = _pipeline(jobs, physics)
    step, drawn_seconds = _pipeline(replace(jobs, gbs=drawn * jobs.mbs * jobs.dp), physics)
    gathered = float(data_parallel(jobs, physics, stage_times(jobs, physics)).gathered[0]) * pace(jobs.cluster, physics)
    reduced = parts["exposed_dp"] - gathered
    # Beside the pipeline and what follows it, a step holds host work and the slow-down by hidden communication.
    rest = max(predicted - seconds - parts["exposed_dp"] - parts["optimizer"], 0.0)
    run = play(_with_once(step, rest, gathered, reduced, parts["optimizer"]))
    recorded, cut = run.recorded, None
    if drawn < microbatches:
        middle = sorted(r.start for r in recorded)[len(recorded) // 2]
        cut = (middle, middle + seconds - drawn_seconds)
        recorded = tuple(_moved(r, cut, step, microbatches) for r in recorded)
    return Timeline(
        recorded=recorded,
        stages=len(step.forward),
        microbatches=microbatches,
        schedule=step.schedule,
        seconds=run.seconds + seconds - drawn_seconds,
        predicted_seconds=predicted,
        bubble=parts["bubble"] / predicted,
        cut=cut,
        left_out=microbatches - drawn,
    )


def _drawn(jobs: Jobs) -> int:
    """Micro-batches to play: as many as there are and the limit allows, but two per stage for the steady state.

    Interleaving is played in whole rounds of one per stage.
    """
    stages, microbatches = int(jobs.pp[0]), int(jobs.num_microbatches[0])
    rounds = _MOST_PASSES // (2 * stages * max(int(jobs.vpp[0]), 2) * stages)
    if microbatches > stages * max(rounds, 2):
        return stages * max(rounds, 2)
    return microbatches - microbatches % stages if microbatches > stages and jobs.vpp[0] > 1 else microbatches


def _pipeline(jobs: Jobs, physics: Physics) -> tuple[Step, float]:
    """The passes of the job, and the seconds that they take by the closed form."""
    times, send, slowest = stage_times(jobs, physics), send_seconds(jobs, physics), pace(jobs.cluster, physics)
    free, shown = pipeline_times(jobs, Passes(times.forward, times.backward, times.weight_gradients), send)

    def by_stage(seconds: NDArray[np.float64]) -> list[float]:
        return [float(value) * slowest for value in seconds[0, : int(jobs.pp[0])]]

    step = Step(
        forward=by_stage(times.forward),
        backward=by_stage(times.backward),
        weight=by_stage(times.weight_gradients),
        microbatches=int(jobs.num_microbatches[0]),
        schedule=Schedule(int(jobs.schedule[0])),
        chunks=int(jobs.vpp[0]),
        send=float(send[0]) * slowest,
        blocking=bool(blocks(jobs)[0]),
    )
    return step, float(free[0] + shown[0]) * slowest


def _with_once(step: Step, host: float, gathered: float, reduced: float, optimizer: float) -> Step:
    """The same on every stage. Sharded parameters that every micro-batch gathers are drawn as if once, too."""
    stages = len(step.forward)
    return replace(
        step,
        before=[("host and contention", [host] * stages), ("parameters", [gathered] * stages)],
        after=[("gradients", [reduced] * stages)],
        together=[("optimizer", [optimizer] * stages)],
    )


def _moved(one: Recorded, cut: tuple[float, float], step: Step, microbatches: int) -> Recorded:
    """A record where and with the number it has in the whole step: later, if it starts after the cut.

    With DualPipe both ends of the pipeline have their own half of the micro-batches, numbered one after the other.
    """
    late, skipped = one.start >= cut[0], microbatches - step.microbatches
    shift = cut[1] - cut[0] if late else 0.0
    number = one.microbatch
    if number >= 0 and step.schedule == Schedule.DUALPIPE:
        number += skipped // 2 * (late + (number >= step.microbatches // 2))
    elif number >= 0:
        number += skipped * late
    return one._replace(microbatch=number, start=one.start + shift, end=one.end + shift)


def chrome_trace(line: Timeline, title: str) -> str:
    """The timeline as JSON for chrome://tracing and https://ui.perfetto.dev: a process per stage, microseconds.

    **Source:** "Trace Event Format" (Google), complete events ``X`` and metadata ``M``.
    """
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, str], int] = {}
    for one in sorted(line.recorded, key=lambda r: r.start):
        track = f"sends to stage {one.to}" if one.kind == "send" else "passes"
        thread = tracks.setdefault((one.stage, track), len(tracks))
        name = one.kind if one.microbatch < 0 else f"{one.kind} {one.carries}".strip() + f" {one.microbatch}"
        event = _complete(name, one.kind, (one.start, one.end), one.stage, thread)
        if one.microbatch >= 0:
            event["args"] = {"micro-batch": one.microbatch, "chunk": one.chunk}
        events.append(event)
    names = [_metadata("process_name", stage, 0, f"stage {stage}") for stage in range(line.stages)]
    names += [_metadata("thread_name", stage, thread, track) for (stage, track), thread in tracks.items()]
    if line.cut:
        names.append(_metadata("process_name", line.stages, 0, "not drawn"))
        events.append(_complete(f"{line.left_out} micro-batches", "not drawn", line.cut, line.stages, len(tracks)))
    about = {
        "title": title,
        "provenance": "simulated",
        "step_time_s": line.seconds,
        "predicted_step_time_s": line.predicted_seconds,
        "bubble_frac": line.bubble,
    }
    return json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about})


def _complete(name: str, category: str, span: tuple[float, float], process: int, thread: int) -> dict[str, Any]:
    start, duration = 1e6 * span[0], 1e6 * (span[1] - span[0])
    return {"name": name, "cat": category, "ph": "X", "ts": start, "dur": duration, "pid": process, "tid": thread}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
