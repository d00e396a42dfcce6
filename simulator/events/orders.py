"""The order in which each stage of a pipeline works, and where its chunks sit.

A **chunk** is the part of a stage's layers that a micro-batch crosses at once: all of them in plain schedules, one
of v with interleaving, one of two where stages form a V. With DualPipe a rank holds two whole stages, its own and
the mirrored one, and they are its two chunks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simulator.job import Schedule


class Kind(StrEnum):
    """What a task computes."""

    FORWARD = "F"
    BACKWARD = "B"  # gradients of inputs and weights at once
    INPUT = "I"  # gradients of the inputs alone
    WEIGHT = "W"  # gradients of the weights, any time after


class Task(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage."""

    kind: Kind
    chunk: int
    microbatch: int


Group = tuple[Task, ...]
"""Tasks that a stage starts together and finishes together: one, or DualPipe's forward beside a backward."""


@dataclass(frozen=True)
class Placement:
    """The stages a micro-batch crosses, in forward order.

    Attributes:
        routes: one; with DualPipe a second one for the later half of the micro-batches, from the other end.
        microbatches: per step.
    """

    routes: tuple[tuple[int, ...], ...]
    microbatches: int

    @classmethod
    def of(cls, schedule: Schedule, stages: int, chunks: int, microbatches: int) -> Placement:
        """The placement of a schedule; ``chunks`` is read by looped schedules only."""
        down = tuple(range(stages))
        if schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V):
            return cls((down + down[::-1],), microbatches)
        if schedule == Schedule.DUALPIPE:
            return cls((down, down[::-1]), microbatches)
        return cls((down * chunks,), microbatches)

    def route(self, microbatch: int) -> tuple[int, ...]:
        """Stages that this micro-batch crosses."""
        return self.routes[microbatch * len(self.routes) // self.microbatches]

    def position(self, stage: int, chunk: int) -> int:
        """How many chunks a micro-batch has crossed before it comes to this one."""
        if len(self.routes) > 1:
            return self.routes[chunk].index(stage)
        return [i for i, crossed in enumerate(self.routes[0]) if crossed == stage][chunk]


def order(schedule: Schedule, stage: int, stages: int, chunks: int, microbatches: int) -> list[Group]:
    """All tasks of one stage in the order in which it works.

    Args:
        schedule: which one.
        stage: 0 is the first.  stages: pipeline size.
        chunks: virtual stages per stage; 2 in a V and with DualPipe, 1 where a schedule has no interleaving.
        microbatches: per step; with DualPipe and its V at least 2 ``stages``, with DualPipe even.

    **Source:** Megatron-LM `core/pipeline_parallel/schedules.py` (1F1B), torch 2.13 `distributed/pipelining/
    schedules.py` (the others; tested against it), deepseek-ai/DualPipe `dualpipe/dualpipe.py` (DualPipe).
    """
    if schedule == Schedule.GPIPE:
        return _breadth_first(chunks, microbatches)
    if schedule == Schedule.ZB_V:
        return _zero_bubble_v(stage, stages, microbatches)
    if schedule == Schedule.DUALPIPE_V:
        return _dualpipe(stage, stages, (0, 1), (0, 0), microbatches)
    if schedule == Schedule.DUALPIPE:
        half, depth = microbatches // 2, min(stage, stages - 1 - stage)
        return _dualpipe(depth, stages // 2, (0, 1) if depth == stage else (1, 0), (0, half), half)
    delay = stage if schedule == Schedule.ZB_H1 else None
    return _one_forward_one_backward(stage, stages, chunks, microbatches, delay)


def _breadth_first(chunks: int, microbatches: int) -> list[Group]:
    """All forwards, chunk by chunk; all backwards from the last chunk on, oldest micro-batch first."""
    forwards: list[Group] = [(Task(Kind.FORWARD, c, i),) for c in range(chunks) for i in range(microbatches)]
    backwards: list[Group] = [
        (Task(Kind.BACKWARD, c, i),) for c in reversed(range(chunks)) for i in range(microbatches)
    ]
    return forwards + backwards


def _one_forward_one_backward(
    stage: int, stages: int, chunks: int, microbatches: int, delay: int | None
) -> list[Group]:
    """Warm-up forwards, one forward one backward, drain.

    With ``delay`` backwards are split and weight gradients follow that many input gradients later.
    """
    total = microbatches * chunks
    behind = stages - stage - 1
    # Megatron's interleaving runs two forwards ahead for each later stage, the zero-bubble variant one.
    warmup = min(behind * (2 if chunks > 1 and delay is None else 1) + (chunks - 1) * stages, total)
    forwards = _looped(Kind.FORWARD, stages, chunks, microbatches)
    backwards = _looped(Kind.BACKWARD if delay is None else Kind.INPUT, stages, chunks, microbatches)
    tasks = forwards[:warmup]
    for i in range(total):
        if warmup + i < total:
            tasks.append(forwards[warmup + i])
        tasks.append(backwards[i])
        if delay is not None and i >= delay:
            tasks.append(backwards[i - delay]._replace(kind=Kind.WEIGHT))
    if delay:
        tasks += [task._replace(kind=Kind.WEIGHT) for task in backwards[max(total - delay, 0) :]]
    return [(task,) for task in tasks]


def _looped(kind: Kind, stages: int, chunks: int, microbatches: int) -> list[Task]:
    """All passes of one kind: groups of ``stages`` micro-batches go through one chunk after the other."""
    there = range(chunks) if kind == Kind.FORWARD else range(chunks - 1, -1, -1)
    groups = [range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)]
    return [Task(kind, chunk, i) for group in groups for chunk in there for i in group]


class _Tasks:
    """Collects tasks; every kind of every chunk counts its own micro-batches."""

    def __init__(self, first: tuple[int, int]) -> None:
        """``first``: the micro-batch with which each chunk starts."""
        self.groups: list[Group] = []
        self.waiting: deque[Task] = deque()
        self._next = {(kind, c): first[c] for kind in ("F", "B", "W") for c in (0, 1)}

    def add(self, *passes: tuple[Kind, int]) -> None:
        """One group of the next micro-batch of each of these (kind, chunk)."""
        group = []
        for kind, chunk in passes:
            counter = ("B" if kind in (Kind.BACKWARD, Kind.INPUT) else kind.value, chunk)
            task = Task(kind, chunk, self._next[counter])
            self._next[counter] += 1
            if kind == Kind.INPUT:
                self.waiting.append(task._replace(kind=Kind.WEIGHT))
            group.append(task)
        self.groups.append(tuple(group))

    def add_waiting(self) -> None:
        """The oldest weight gradient that is still to be taken."""
        if self.waiting:
            self.groups.append((self.waiting.popleft(),))


def _zero_bubble_v(stage: int, stages: int, microbatches: int) -> list[Group]:
    """Input and weight gradients apart; the drain's weight gradients fill what would be idle.

    The order is made for at least 2 p - 1 micro-batches; those beyond ``microbatches`` are left out.
    """
    count = max(2 * stages - 1, microbatches)
    tasks = _Tasks((0, 0))
    taken = {0: 0, 1: 0}  # input gradients by chunk

    def split(chunk: int) -> None:
        taken[chunk] += 1
        tasks.add((Kind.INPUT, chunk))
        tasks.add((Kind.WEIGHT, chunk))

    ahead = 2 * (stages - stage) - 1
    for _ in range(ahead):
        tasks.add((Kind.FORWARD, 0))
    for _ in range(stage):
        tasks.add((Kind.FORWARD, 1))
        tasks.add((Kind.FORWARD, 0))
    for _ in range(stages - stage):
        tasks.add((Kind.FORWARD, 1))
        split(1)
    for i in range(count - (stages - stage) - stage):
        if ahead + stage + i < count:
            tasks.add((Kind.FORWARD, 0))
        split(0)
        tasks.add((Kind.FORWARD, 1))
        split(1)
    for _ in range(stage):
        tasks.add((Kind.INPUT, 0))
        tasks.add((Kind.INPUT, 1))
    for _ in range(stages - stage):
        tasks.add((Kind.INPUT, 0))
        tasks.add((Kind.WEIGHT, 0))
    for chunk, left in ((1, stage), (0, stage)):
        for _ in range(left):
            tasks.add((Kind.WEIGHT, chunk))
    return [group for group in tasks.groups if group[0].microbatch < microbatches]


def _dualpipe(depth: int, depths: int, chunks: tuple[int, int], first: tuple[int, int], count: int) -> list[Group]:
    """DualPipe's eight steps.

    Args:
        depth, depths: the stage's distance from the outer end, of so many: the arm of a V, or half the pipeline.
        chunks: the one whose micro-batches come from the outer end, and the one whose they come to it.
        first, count: micro-batch with which each chunk starts, and how many it sees.
    """
    near, far = chunks
    tasks, inner = _Tasks(first), depths - depth - 1
    forward, backward, split = Kind.FORWARD, Kind.BACKWARD, Kind.INPUT
    for _ in range(2 * inner):
        tasks.add((forward, near))
    for _ in range(depth + 1):
        tasks.add((forward, near))
        tasks.add((forward, far))
    for _ in range(inner):
        tasks.add((split, far))
        tasks.add_waiting()
        tasks.add((forward, far))
    for i in range(count - 2 * depths + depth + 1):
        if i == 0 and inner == 0:  # side by side they would start later here
            tasks.add((forward, near))
            tasks.add((backward, far))
        else:
            tasks.add((forward, near), (backward, far))
        tasks.add((forward, far), (backward, near))
    for _ in range(inner):
        tasks.add((backward, far))
        tasks.add((forward, far), (backward, near))
    for i in range(2 * (depth + 1)):  # the later half leaves its weight gradients for the end
        tasks.add((backward if i <= depth else split, near if i % 2 else far))
    for _ in range(inner):
        tasks.add_waiting()
        tasks.add((split, near))
    while tasks.waiting:
        tasks.add_waiting()
    return tasks.groups
