"""The program of a child process: it takes jobs from its parent, one after another, and does not outlive it.

A tuner may hang, exit, crash or eat all memory; it takes this process with it, and no other. The parent writes
pickled jobs to standard input and reads one line for each: done, done for the last time (the tuner left something
behind that the next one would meet), or why no record could be left. The end of standard input is the parent's death,
however it came about: this process then kills its whole group, so no lock stays held.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO

from attune_lab.contracts import EnvironmentFault
from attune_lab.study.leftovers import seed_global_numbers, state_of_process

if TYPE_CHECKING:
    from attune_lab.study.jobs import Job

DONE, SPENT, FAULT = b"done\n", b"spent\n", b"fault "
_LARGEST_FILE = 2**28
"""Bytes that any one file may grow to; what a campaign keeps itself is far smaller."""

_GRACE_S = 20
"""A parent ends a job at its time limit; a child that is left alone, and too busy to notice, ends itself later."""


def main() -> None:
    """Do jobs until the parent leaves."""
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # what a tuner reads is no job, and what it prints is no answer
        os.dup2(nothing, stream)
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(source, jobs), daemon=True).start()
    while True:
        answers.write(_do(jobs.get()))


def _do(job: Job) -> bytes:
    """Do a job and return the answer."""
    clean = state_of_process()
    seed_global_numbers(job.world)
    try:
        with _limited(job.time_limit_s, job.spec.memory_limit_gib), _printing_to(job.folder):
            job.run()
    except (EnvironmentFault, OSError) as error:  # the folder cannot be written: no tuner's doing
        return FAULT + " ".join(str(error).split()).encode(errors="backslashreplace") + b"\n"
    return DONE if state_of_process() == clean else SPENT


def _receive(source: BinaryIO, jobs: SimpleQueue[Job]) -> None:
    try:
        while True:
            jobs.put(pickle.load(source))
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)


@contextmanager
def _limited(time_s: float, memory_gib: float) -> Iterator[None]:
    """Bounds that hold even while foreign code does not let Python run: of time, of memory, of any one file."""
    if sys.platform == "linux":  # elsewhere the system does not count what is mapped
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = _LARGEST_FILE if hard == resource.RLIM_INFINITY else min(_LARGEST_FILE, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a tuner that prints for ever does not fill the disk
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, time_s + _GRACE_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _printing_to(folder: Path) -> Iterator[None]:
    """What is printed meanwhile goes to a file beside the job's record; no file where nothing is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "output.txt"
    with path.open("ab") as printed:
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
    yield
    if path.stat().st_size == 0:
        path.unlink()


if __name__ == "__main__":
    main()
