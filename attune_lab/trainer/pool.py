"""Rank processes that stay alive and are fed runs, for hundreds of distributed runs of a few seconds each.

Starting a process that imports torch takes seconds, so ranks are forked from a server that imported it once, and a run
costs little more than its own steps. Three settings of a rank matter where ranks outnumber cores (4 ranks, 2 cores):

* one thread per rank;
* the scheduling policy ``SCHED_BATCH``: without it every message wakes a gloo thread that preempts a computing rank,
  and an all-reduce of 1,000 floats takes 6.6 ms instead of 1.2 ms;
* gloo connects two ranks of a group when they first talk: making and destroying 30 groups takes 0.2 s instead of 1.5 s.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Literal

LAST_LINES = 20
"""Lines kept of a rank's traceback."""
DEATH_NOTICE_S = 0.2
"""How long a dead rank is waited for when another one fails: its peers notice the death before its parent does."""


class RunFailed(Exception):
    """A run that did not finish on every rank; the message is one line.

    Attributes:
        rank: the rank that failed first; None where ranks did not finish in time.
        trace: the last lines of its traceback, empty where there is none.
    """

    def __init__(self, reason: str, *, rank: int | None = None, trace: str = "") -> None:
        super().__init__(reason)
        self.rank, self.trace = rank, trace


@dataclass(frozen=True)
class _Task:
    """One run as a rank gets it: which group to join, and the function with its arguments, pickled."""

    rendezvous: str
    world_size: int
    call: bytes


@dataclass(frozen=True)
class _Failure:
    """What a rank answers when the function raised."""

    reason: str
    trace: str


@dataclass(frozen=True)
class _Rank:
    process: BaseProcess
    pipe: Connection


class RankPool:
    """Rank processes on this machine, used as a context; they end with it, and with the process that made them.

    A run that fails in any way costs the pool its ranks; the next run starts new ones. One thread may run at a time.

    Args:
        world_size: ranks to keep; a run may use the first few.
        backend: of torch.distributed; with ``nccl`` rank n uses the GPU n.
        start_method: ``forkserver`` (one import of torch for all), or ``spawn`` where forking is not possible.
    """

    def __init__(
        self,
        world_size: int,
        *,
        backend: Literal["gloo", "nccl"] = "gloo",
        start_method: Literal["forkserver", "spawn"] = "forkserver",
    ) -> None:
        self.world_size = world_size
        self._backend = backend
        self._context = (
            multiprocessing.get_context("spawn")
            if start_method == "spawn"
            else multiprocessing.get_context("forkserver")
        )
        self._context.set_forkserver_preload(["torch", "torch.distributed"])
        self._folder = tempfile.TemporaryDirectory(prefix="attune-ranks-")
        self._ranks: list[_Rank] = []
        self._runs = 0

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def run(
        self, function: Callable[..., Any], *arguments: Any, world_size: int | None = None, timeout: float = 600.0
    ) -> Any:
        """What rank 0 returns of ``function(rank, world_size, *arguments)``, called on every rank of a new group.

        Args:
            function: of a module, by whose name the ranks import it.
            arguments: anything that can be pickled; so must be the result.
            world_size: ranks of this run; all when None.
            timeout: seconds the whole run may take.

        Raises:
            RunFailed: a rank raised, died, or was not done in time.
        """
        world_size = world_size or self.world_size
        if not 1 <= world_size <= self.world_size:
            raise ValueError(f"a pool of {self.world_size} ranks cannot run {world_size}")
        self._runs += 1
        rendezvous = f"{self._folder.name}/{self._runs}"
        task = _Task(f"file://{rendezvous}", world_size, pickle.dumps((function, arguments)))
        try:
            self._start()
            ranks = dict(enumerate(self._ranks[:world_size]))
            for number, rank in ranks.items():
                _send(number, rank, task)
            return _collect(ranks, timeout)
        except BaseException:  # Ctrl-C as well: nobody knows where in the run the ranks are
            self._stop()
            raise

    def kill(self) -> None:
        """Ends the ranks, and so the run another thread may be waiting for."""
        for rank in list(self._ranks):
            rank.process.kill()

    def _start(self) -> None:
        if not self._ranks:
            self._ranks = [self._start_rank(number) for number in range(self.world_size)]

    def _start_rank(self, number: int) -> _Rank:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(number, theirs, self._backend), name=f"rank {number}", daemon=True
        )
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        return _Rank(process, ours)

    def _stop(self) -> None:
        self.kill()
        for rank in self._ranks:
            rank.process.join()
            rank.pipe.close()
        self._ranks = []


def _send(number: int, rank: _Rank, task: _Task) -> None:
    try:
        rank.pipe.send(task)
    except OSError:
        raise _death(number, rank) from None


def _death(number: int, rank: _Rank) -> RunFailed:
    rank.process.join()
    return RunFailed(f"rank {number} died with exit code {rank.process.exitcode}", rank=number)


def _collect(ranks: Mapping[int, _Rank], timeout: float) -> Any:
    """The result of rank 0 once every rank is done."""
    deadline = time.monotonic() + timeout
    waiting = {rank.pipe: number for number, rank in ranks.items()}
    result = None
    while waiting:
        ready = connection.wait(waiting, max(deadline - time.monotonic(), 0.0))
        if not ready:
            unfinished = ", ".join(map(str, sorted(waiting.values())))
            raise RunFailed(f"ranks {unfinished} were not done within {timeout:g} s")
        for number in sorted(waiting[pipe] for pipe in ready if isinstance(pipe, Connection)):
            rank = ranks[number]
            del waiting[rank.pipe]
            try:
                answer = rank.pipe.recv()
            except (EOFError, OSError):
                raise _death(number, rank) from None
            if isinstance(answer, _Failure):
                _raise_if_dead(ranks)
                raise RunFailed(f"rank {number}: {answer.reason}", rank=number, trace=answer.trace)
            result = pickle.loads(answer) if number == 0 else result
    return result


def _raise_if_dead(ranks: Mapping[int, _Rank]) -> None:
    """A dead rank is why the others fail."""
    dead = connection.wait([rank.process.sentinel for rank in ranks.values()], DEATH_NOTICE_S)
    for number, rank in ranks.items():
        if rank.process.sentinel in dead:
            raise _death(number, rank)


def _serve(rank: int, pipe: Connection, backend: str) -> None:
    """The life of a rank process: runs what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _prepare(rank, backend)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(rank, task, backend))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _prepare(rank: int, backend: str) -> None:
    """Settings of the process, before torch starts its threads: see the module's description."""
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())


def _attempt(rank: int, task: _Task, backend: str) -> bytes | _Failure:
    """What the rank answers: its result, pickled (None but from rank 0), or why there is none."""
    import torch.distributed as dist

    try:
        function, arguments = pickle.loads(task.call)
        dist.init_process_group(backend, init_method=task.rendezvous, rank=rank, world_size=task.world_size)
        result = function(rank, task.world_size, *arguments)
        dist.destroy_process_group()
        return pickle.dumps(result if rank == 0 else None)
    except Exception as error:  # whatever a run raises is its result
        # The group stays as it is: closing its connections here would make the other ranks' errors race this one.
        return _Failure(f"{type(error).__name__}: {error}".splitlines()[0], _tail(traceback.format_exception(error)))


def _tail(parts: Iterable[str]) -> str:
    return "\n".join("".join(parts).rstrip().splitlines()[-LAST_LINES:])
