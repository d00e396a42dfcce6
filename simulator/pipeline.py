"""Time and memory of a pipeline schedule in closed form.

Shape letters:  B = jobs,  P = pipeline stages of the deepest job (zero-padded). Inside, arrays are (P, B): numpy
accumulates along the first axis much faster.

The time of a schedule is its longest path through passes that wait for one another. What is here was derived from
such paths and is tested against `simulator.events`, which plays the schedule pass by pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.job import Bools, Ints, Jobs, Schedule, once, present, stage_numbers
from simulator.recording import recorded

Floats = NDArray[np.float64]

# Share of what the slowest stage works beyond the average stage during fill and drain that falls into idle time.
# Source: fitted to `simulator.events` over stages that differ by up to 30 %.
_ABSORBED = {Schedule.ZB_H1: 0.5, Schedule.ZB_V: 0.5, Schedule.DUALPIPE: 1.0, Schedule.DUALPIPE_V: 1.0}


@dataclass(frozen=True)
class Pipelines:
    """The shape of a batch of pipelines; every array has shape (B,).

    Attributes:
        schedule: a `Schedule`.
        stages: pipeline size.  chunks: virtual stages per stage.  microbatches: per step.
    """

    schedule: Ints
    stages: Ints
    chunks: Ints
    microbatches: Ints

    @classmethod
    def of(cls, jobs: Jobs) -> Pipelines:
        """The pipelines of these jobs."""
        return cls(jobs.schedule, jobs.pp, jobs.vpp, jobs.num_microbatches)

    def take(self, index: Bools) -> Pipelines:
        """The pipelines where ``index`` is true."""
        return Pipelines(self.schedule[index], self.stages[index], self.chunks[index], self.microbatches[index])


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch on each stage, all chunks together, shape (B, P).

    Attributes:
        forward, backward: the two passes.
        weight: the part of ``backward`` that no other stage waits for, the gradients of the weights.
    """

    forward: Floats
    backward: Floats
    weight: Floats

    @property
    def total(self) -> Floats:
        """Forward plus backward."""
        return self.forward + self.backward


@recorded
def pipeline_times(jobs: Jobs, passes: Passes, send: Floats) -> tuple[Floats, Floats]:
    """Seconds of each job's pipeline with free transfers, and what transfers add to it, shapes (B,).

    Interleaved stages that do not overlap their transfers (``overlap_p2p``) send after each chunk's pass and wait
    meanwhile; in plain schedules the receiver alone waits.

    Args:
        passes: see `pipeline_seconds`.  send: seconds of a transfer between neighbouring stages, shape (B,).

    Raises:
        ValueError: see `pipeline_seconds`.

    **Source:** Megatron-LM `core/pipeline_parallel/schedules.py`.
    """
    pipelines = Pipelines.of(jobs)
    free = pipeline_seconds(pipelines, passes)
    if not send.any():
        return free, np.zeros_like(free)
    blocking = blocks(jobs)
    if blocking.any():
        own = np.where(blocking & (jobs.pp > 1), jobs.vpp * send, 0.0)[:, None]
        waits = np.where(passes.total > 0, own, 0.0)
        passes = Passes(passes.forward + waits, passes.backward + waits, passes.weight)
    shown: Floats = pipeline_seconds(pipelines, passes, np.where(blocking, 0.0, send)) - free
    return free, shown


def blocks(jobs: Jobs) -> Bools:
    """Where a stage waits while it sends, shape (B,)."""
    waits: Bools = (jobs.vpp > 1) & ~jobs.overlap_p2p & (jobs.schedule == int(Schedule.ONE_F_ONE_B))
    return waits


def pipeline_seconds(pipelines: Pipelines, passes: Passes, send: Floats | float = 0.0) -> Floats:
    """Seconds from the first forward to the last backward, shape (B,).

    Args:
        pipelines: the schedules.
        passes: of every stage; with DualPipe the average of a rank's two stages.
        send: transfer between neighbouring (virtual) stages, which occupies neither, shape (B,), seconds.

    Without transfers GPipe, plain 1F1B and even stages are exact; interleaved 1F1B over stages that differ by up to
    30 % is at most 2 % low. Transfers of 1 % of a micro-batch leave 1F1B within 2 %, of 10 % within 6 %. The others
    are exact for even stages and two micro-batches per stage or more, within 10 % for uneven ones, all of them
    closer the more micro-batches there are.

    Raises:
        ValueError: DualPipe where stages or micro-batches are odd, or DualPipe or its V with fewer than two
            micro-batches per stage.

    **Source:** derived; for even stages equal to arXiv 2104.04473 section 2.2, 2401.10241 Table 1, 2405.15362 and
    2412.19437 Table 2.
    """
    send = np.broadcast_to(np.asarray(send, dtype=np.float64), pipelines.stages.shape)
    kinds = present(pipelines.schedule)
    if len(kinds) == 1:
        return _of_one_schedule(Schedule(kinds[0]), pipelines, passes, send)
    seconds = np.empty(send.shape)
    for kind in kinds:
        at = pipelines.schedule == kind
        chosen = Passes(passes.forward[at], passes.backward[at], passes.weight[at])
        seconds[at] = _of_one_schedule(Schedule(kind), pipelines.take(at), chosen, send[at])
    return seconds


def _of_one_schedule(schedule: Schedule, pipelines: Pipelines, passes: Passes, send: Floats) -> Floats:
    if schedule not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):
        return _zero_bubble(schedule, pipelines, passes, send)
    forward = np.ascontiguousarray(passes.forward.T) / pipelines.chunks
    backward = np.ascontiguousarray(passes.backward.T) / pipelines.chunks
    if schedule == Schedule.GPIPE:
        return _one_way(pipelines, forward, send) + _one_way(pipelines, backward, send)
    return _one_forward_one_backward(pipelines, forward, backward, send)


def _one_way(pipelines: Pipelines, chunk: Floats, send: Floats) -> Floats:
    """Seconds until all micro-batches have gone one way through all chunks: a flow shop of equal jobs."""
    stages, chunks, count = pipelines.stages, pipelines.chunks, pipelines.microbatches
    crossing, slowest = chunk.sum(axis=0), chunk.max(axis=0)
    lap = np.maximum(count * slowest, crossing + stages * send)
    seconds: Floats = (chunks - 1) * lap + crossing + (stages - 1) * send + (count - 1) * slowest
    return seconds


def _one_forward_one_backward(pipelines: Pipelines, forward: Floats, backward: Floats, send: Floats) -> Floats:
    """1F1B, interleaved or not: the longest path over the stage s that works through the steady state.

    A micro-batch arrives at s, s runs its warm-up forwards, alternates, runs its last backwards, and they leave
    upwards. Warm-up and drain are bound by s itself, by a slower stage above it, by the first gradient's way back
    up from a stage below, or, when interleaved, by laps through all chunks.

    ``forward`` and ``backward`` are of one chunk, shape (P, B).
    """
    stages, chunks, count = (a.astype(np.float64) for a in (pipelines.stages, pipelines.chunks, pipelines.microbatches))
    total, behind = count * chunks, stages - 1 - np.arange(float(len(forward)))[:, None]
    first_lap = (chunks - 1) * np.minimum(stages, count)  # passes before the last chunk's first
    held = np.where(chunks > 1, 2 * behind + first_lap, behind) + 1
    held = np.minimum(np.maximum(held, 1), total)
    both, hops = forward + backward, np.minimum(stages - 1 - behind, stages - 1) * send
    crossed = _running(np.add, both) + 2 * hops
    ways = [_Way.of(one, hops, crossed, held) for one in (forward, backward)]
    if (chunks > 1).any():
        last = both[pipelines.stages - 1, np.arange(pipelines.stages.size)]
        late = stages * last + send - ((chunks + 1) * stages + 1 - held) * both
        late = np.where((chunks > 1) & (count >= 2 * stages) & (behind >= 0), late, -np.inf)
        ways = [way.with_laps(crossed, (chunks - 1) * (way.crossing + send), first_lap, late) for way in ways]
    down, up = ways
    ends = np.where(total > held, down.ramp + up.ramp, np.maximum(down.ramp + up.filled, down.filled + up.ramp))
    steady = (total - held) * both + _ping_pong(pipelines, both, send, held)
    seconds: Floats = (down.arrival + up.arrival + both + steady + ends).max(axis=0)
    return seconds


@dataclass(frozen=True)
class _Way:
    """Warm-up; or drain, which mirrors it in time. Shapes (P, B), of one chunk's passes, unless said.

    Attributes:
        arrival: from the outside to a stage.
        filled: the passes a stage runs ahead (behind), at the pace of the slowest stage on the way there.
        ramp: the same or longer, until the first gradient is back (from the last forward on).
        crossing: through all stages once, shape (B,).  slowest: pass, shape (B,).
    """

    arrival: Floats
    filled: Floats
    ramp: Floats
    crossing: Floats
    slowest: Floats

    @classmethod
    def of(cls, chunk: Floats, hops: Floats, crossed: Floats, held: Floats) -> _Way:
        through, slowest = _running(np.add, chunk), _running(np.maximum, chunk)
        filled = (held - 1) * slowest
        turned = _running(np.maximum, (filled + crossed)[::-1])[::-1] - crossed
        return cls(through - chunk + hops, filled, turned, through[-1] + hops[-1], slowest[-1])

    def with_laps(self, crossed: Floats, laps: Floats, first_lap: Floats, late: Floats) -> _Way:
        """Bounded also by the laps up to the last chunk, and by the lap after them, whose forwards wait behind the
        last stage's steady state (``late``) while stages above it still warm up."""
        to_last = np.maximum(first_lap * self.slowest, laps)
        ramp = np.maximum(np.maximum(self.ramp, laps + crossed[-1] - crossed), self.crossing + to_last + late)
        return replace(self, ramp=ramp)


def _ping_pong(pipelines: Pipelines, both: Floats, send: Floats, held: Floats) -> Floats:
    """What transfers add to the steady state of plain 1F1B, shape (P, B).

    Between two stages n apart only n + 1 micro-batches are under way, so each waits for a round trip of another:
    the pace is that of the slowest run of stages with its transfers. Runs of two, four, ... and all stages count.
    """
    plain = (pipelines.chunks == 1) & (pipelines.stages > 1)
    if not np.any(plain & (send > 0)):
        return np.zeros_like(both)
    gain = np.zeros_like(both)
    stages, slowest = pipelines.stages, both.max(axis=0)
    pairs = np.maximum(pipelines.microbatches - 1 - held, 0)
    gap = np.where(np.arange(len(both))[:, None] < stages - 1, 2 * send, 0.0)
    run, width = both, 1
    while 2 * width < len(both):
        run = run[:-width] + run[width:] + gap[width - 1 : len(run) - 1]
        width *= 2
        gain = np.maximum(gain, np.floor(pairs / width) * (run.max(axis=0) - width * slowest))
    everything = both.sum(axis=0) + 2 * (stages - 1) * send - stages * both
    return np.where(plain, np.maximum(gain, np.floor(pairs / stages) * everything), 0.0)


def _running(step: np.ufunc, rows: Floats) -> Floats:
    """``step.accumulate`` along the stages, an order of magnitude faster than numpy's for few long rows."""
    out = np.empty(rows.shape)
    out[0] = rows[0]
    for row in range(1, len(rows)):
        step(out[row - 1], rows[row], out=out[row])
    return out


def _zero_bubble(schedule: Schedule, pipelines: Pipelines, passes: Passes, send: Floats) -> Floats:
    """Schedules that take weight gradients apart: the slowest stage's work and the idle time of even stages.

    Of that idle time a slowest stage fills a part with what it has to do beyond the average stage.
    """
    stages = pipelines.stages
    if schedule in (Schedule.DUALPIPE, Schedule.DUALPIPE_V):
        _require_full_dualpipe(schedule, pipelines)
    forward, weight, total = (a.sum(axis=1) / stages for a in (passes.forward, passes.weight, passes.total))
    slowest = passes.total.max(axis=1)
    idle, behind = _idle(schedule, pipelines, forward, total - forward - weight, weight)
    idle = np.maximum(idle - _ABSORBED[schedule] * behind * (slowest - total), 0.0)
    seconds: Floats = pipelines.microbatches * slowest + idle + _transfers(schedule, pipelines) * send
    return seconds


def _require_full_dualpipe(schedule: Schedule, pipelines: Pipelines) -> None:
    stages, count = pipelines.stages, pipelines.microbatches
    if schedule == Schedule.DUALPIPE and np.any((stages | count) % 2):
        raise ValueError("DualPipe needs an even number of stages and of micro-batches; change pp, gbs or the schedule")
    if np.any(count < 2 * stages):
        raise ValueError("DualPipe needs two micro-batches per pipeline stage; raise gbs, or lower mbs or pp")


def _idle(schedule: Schedule, pipelines: Pipelines, f: Floats, b: Floats, w: Floats) -> tuple[Floats, Floats]:
    """Idle seconds of even stages with forward, input gradient and weight gradient of f, b, w; and the passes
    between the ends of the pipeline. Each is the longest of the paths that can be critical. Shapes (B,)."""
    stages, chunks = pipelines.stages, pipelines.chunks
    if schedule == Schedule.ZB_H1:
        behind = (stages - 1) / chunks
        return behind * np.maximum(np.maximum(f, b), f + b - w), behind
    depth = stages / 2 if schedule == Schedule.DUALPIPE else stages.astype(np.float64)
    behind, half = depth - 1, np.maximum(depth / 2 - 1, 0.0)
    if schedule == Schedule.ZB_V:
        paths = (behind / 2 * b, behind / 2 * f + half * (f - b), behind * (b - w), np.maximum(f, b) / 2 + half * w)
        return np.where(stages > 1, np.maximum.reduce(paths), 0.0), behind
    idle = np.maximum.reduce((behind * (f + (b - w) / 2), half * f + behind * (b - w / 2), behind * f))
    arms = 2 if schedule == Schedule.DUALPIPE else 1
    return np.where(depth > 1, arms * idle, 0.0), arms * behind


def _transfers(schedule: Schedule, pipelines: Pipelines) -> Floats:
    """Transfers that lengthen a step of even stages, while they are short, shape (B,)."""
    stages, chunks, count = pipelines.stages, pipelines.chunks, pipelines.microbatches
    if schedule == Schedule.ZB_H1:
        shown = 4.0 * (stages - 1) + (chunks - 1) * stages
    elif schedule == Schedule.ZB_V:
        shown = 5.0 * stages - 7
    elif schedule == Schedule.DUALPIPE_V:
        shown = 2 * count * (stages - 1) / stages + 2.0 * stages - 4
    else:
        shown = count * (stages - 1) / stages + np.maximum(1.5 * stages - 3, 1.0)
    return np.where(stages > 1, shown, 0.0)


def in_flight(jobs: Jobs) -> Floats:
    """Micro-batches whose activations a stage holds at its peak, shape (B, P), 0 beyond a job's last stage.

    A micro-batch counts until its weight gradients are taken. Fractions of one where a stage works in chunks of
    1 / v, or, with DualPipe, in halves: one of its own stage's micro-batches and one of the mirrored stage's make
    a whole one of the rank's layers (`held_by_rank`).

    1F1B: p - r. Interleaved: 2 (p - r) - 1 + (v - 1) p chunks. ZB-H1 and ZB-V: p on every stage. DualPipe: p + 1 half
    ones. Its V: 2 p + 1 chunks of a half.

    **Source:** Megatron-LM core/pipeline_parallel/schedules.py, warm-up micro-batches; arXiv 2104.04473; 2401.10241
    Table 1; 2405.15362 section 4; 2412.19437 Table 2.
    """
    stage = stage_numbers(jobs)
    pp, vpp, count, schedule = (a[:, None] for a in (jobs.pp, jobs.vpp, jobs.num_microbatches, jobs.schedule))
    behind = np.maximum(pp - stage, 0)
    held = np.where(vpp > 1, (2 * behind - 1 + (vpp - 1) * pp) / vpp, behind)
    if (schedule != int(Schedule.ONE_F_ONE_B)).any():
        zero_bubble = (schedule == Schedule.ZB_H1) | (schedule == Schedule.ZB_V)
        kinds = [schedule == Schedule.GPIPE, zero_bubble]
        kinds += [schedule == kind for kind in (Schedule.DUALPIPE, Schedule.DUALPIPE_V)]
        held = np.select(kinds, [count, pp, (pp + 1) / 2, pp + 0.5], held)
    inside: Floats = np.where(stage < pp, np.clip(held, 0.0, count), 0.0)
    return inside


@once
def holds_two(jobs: Jobs) -> Bools | None:
    """Where a rank holds two stages of the pipeline, shape (B,); None where none does."""
    twice: Bools = jobs.schedule == int(Schedule.DUALPIPE)
    return twice if twice.any() else None


def held_by_rank(jobs: Jobs, stage_values: Floats) -> Floats:
    """What every pipeline rank holds, (B, P), of what a stage has: DualPipe's ranks hold the mirrored stage too.

    **Source:** arXiv 2412.19437 Table 2 (parameters twice).
    """
    twice = holds_two(jobs)
    if twice is None:
        return stage_values
    mirrored = jobs.pp[:, None] - 1 - stage_numbers(jobs)
    other = np.take_along_axis(stage_values, np.maximum(mirrored, 0), axis=1)
    held: Floats = stage_values + np.where(twice[:, None] & (mirrored >= 0), other, 0.0)
    return held
