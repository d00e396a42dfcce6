"""A discrete-event simulation of pipeline schedules: the reference for the closed forms of `simulator.pipeline`.

One process per stage works through its schedule (Megatron-LM's 1F1B or interleaved order) and waits for the
activations and gradients that its neighbours send.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import simpy


class Task(NamedTuple):
    """One pass of one micro-batch through one chunk (virtual stage) of a pipeline stage."""

    forward: bool
    chunk: int
    microbatch: int


def schedule(stage: int, stages: int, chunks: int, microbatches: int) -> list[Task]:
    """The order in which a stage works: warm-up forwards, one forward one backward, drain.

    Args:
        stage: 0 is the first.
        stages: pipeline size.
        chunks: virtual stages per stage, 1 for plain 1F1B.
        microbatches: per step; a multiple of ``stages`` when interleaved.

    **Source:** Megatron-LM `core/pipeline_parallel/schedules.py`.
    """
    total = microbatches * chunks
    forwards = [_task(True, i, stages, chunks) for i in range(total)]
    backwards = [_task(False, i, stages, chunks) for i in range(total)]
    if chunks == 1:
        warmup = min(stages - stage - 1, total)
    else:
        warmup = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    order = forwards[:warmup]
    for i in range(total - warmup):
        order += [forwards[warmup + i], backwards[i]]
    return order + backwards[total - warmup :]


def _task(forward: bool, index: int, stages: int, chunks: int) -> Task:
    """The index-th pass: groups of ``stages`` micro-batches go through one chunk after the other."""
    if chunks == 1:
        return Task(forward, 0, index)
    group, within = divmod(index, stages * chunks)
    chunk, offset = divmod(within, stages)
    return Task(forward, chunk if forward else chunks - 1 - chunk, group * stages + offset)


def simulate_pipeline(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, *, chunks: int = 1, send: float = 0.0
) -> float:
    """Seconds from the first forward to the last backward.

    Args:
        forward, backward: seconds of one micro-batch on each stage, all of its chunks together.
        microbatches: per step; a multiple of the stages when interleaved.
        chunks: virtual stages per stage.
        send: seconds a transfer between neighbouring (virtual) stages takes; it occupies neither of them.
    """
    env = simpy.Environment()
    stages = len(forward)
    last = stages * chunks - 1
    done: dict[tuple[bool, int, int], simpy.Event] = {
        (way, position, batch): env.event()
        for way in (True, False)
        for position in range(last + 1)
        for batch in range(microbatches)
    }

    def needs(task: Task, position: int) -> simpy.Event | None:
        if task.forward:
            return done[True, position - 1, task.microbatch] if position else None
        if position == last:
            return done[True, position, task.microbatch]
        return done[False, position + 1, task.microbatch]

    def arrive(key: tuple[bool, int, int]) -> Generator[simpy.Event, None, None]:
        yield env.timeout(send)
        done[key].succeed()

    def work(stage: int) -> Generator[simpy.Event, None, None]:
        for task in schedule(stage, stages, chunks, microbatches):
            position = task.chunk * stages + stage
            waits_for = needs(task, position)
            if waits_for is not None:
                yield waits_for
            yield env.timeout((forward if task.forward else backward)[stage] / chunks)
            key = (task.forward, position, task.microbatch)
            if task.forward and position == last:
                done[key].succeed()
            else:
                env.process(arrive(key))

    running = [env.process(work(stage)) for stage in range(stages)]
    env.run(until=simpy.AllOf(env, running))
    return float(env.now)
