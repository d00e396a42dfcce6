"""Runs the runs of a suite: each one once, the largest first, several side by side, finished ones from the cache.

Two pools of ranks use two cores better than one: while the ranks of one run wait for each other, those of the other
compute (20 steps of 48 small layers with 24 all-reduces each, on 4 ranks: 1.9 s per run with one pool, 0.9 s with two;
measured on 2 cores that others used as well).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.pool import RankPool, RunFailed
from experiments.faults.cache import Cache, Result, key_of, trainer_digest
from experiments.faults.plan import Fault, Run

Execute = Callable[[int, int, Run, Path, Path | None], None]
Job = tuple[str, Run]
End = tuple[str, Result]


@dataclass(frozen=True)
class Finished:
    """How a run ended, and the folder of its files (absent when the run was killed or hung)."""

    result: Result
    folder: Path


@dataclass(frozen=True)
class Progress:
    """One more run is done: ``done`` of ``total``, and the share of the work ahead that was its own."""

    result: Result
    cached: bool
    done: int
    total: int
    share: float


def execute(_rank: int, _world_size: int, run: Run, out: Path, start: Path | None) -> None:
    """One run as one of its ranks sees it; it starts from a checkpoint, if any, and writes its files to ``out``."""
    from attune_lab.trainer.injection import patched
    from attune_lab.trainer.loop import train
    from experiments.faults.suite import FAULTS

    with patched(FAULTS[run.fault].patches if run.fault else {}):
        train(run.config, out=out, probes=run.probes, start=start)


def warm_up(_rank: int, _world_size: int, config: TrainerConfig, folder: Path) -> Path:
    """The checkpoint that warm runs of a model start from; trained by the first that asks."""
    from attune_lab.trainer.warm import warm_start

    return warm_start(config, folder)


def work_of(run: Run) -> float:
    """How long a run takes compared with others: its tokens, and a price for each rank of a step."""
    config = run.config
    return config.train_iters * (config.gbs * config.seq_len * config.num_layers / 1e3 + 2.0 * config.world_size)


def run_all(
    runs: Iterable[Run],
    *,
    faults: Mapping[str, Fault],
    cache: Cache,
    workers: int = 2,
    timeout: float = 600.0,
    tell: Callable[[Progress], None] | None = None,
    execute: Execute = execute,
) -> dict[Run, Finished]:
    """The end of every run.

    Args:
        faults: those the runs name.
        cache: where finished runs are looked up and kept, each as soon as it is done.
        workers: runs side by side, each on ranks of its own.
        timeout: seconds a single run may take.
        tell: called after each distinct run, in the calling thread.
        execute: what a run does on a rank.
    """
    keys = _keys(runs, faults)
    distinct = {key: run for run, key in reversed(keys.items())}
    ends = {key: found for key in distinct if (found := cache.find(key))}
    tell = tell or (lambda _: None)
    for done, found in enumerate(ends.values(), start=1):
        tell(Progress(found, True, done, len(distinct), 0.0))
    jobs = [(key, run) for key, run in distinct.items() if key not in ends]
    jobs.sort(key=lambda job: (-job[1].config.world_size, -work_of(job[1]), job[0]))
    work = sum(work_of(run) for _, run in jobs)
    for key, result in _work_through(jobs, cache, workers, timeout, execute):
        ends[key] = result
        tell(Progress(result, False, len(ends), len(distinct), work_of(distinct[key]) / work))
    return {run: Finished(ends[key], cache.folder(key)) for run, key in keys.items()}


def forget(runs: Iterable[Run], *, faults: Mapping[str, Fault], cache: Cache) -> None:
    """Removes what the cache has of these runs."""
    for key in _keys(runs, faults).values():
        cache.remove(key)


def _keys(runs: Iterable[Run], faults: Mapping[str, Fault]) -> dict[Run, str]:
    return {run: key_of(run, faults[run.fault] if run.fault else None) for run in runs}


def _work_through(jobs: Sequence[Job], cache: Cache, workers: int, timeout: float, execute: Execute) -> Iterator[End]:
    """The ends of the jobs as they come; leaving early, as on Ctrl-C, kills what still runs."""
    ranks = max((run.config.world_size for _, run in jobs), default=1)
    crew = [RankPool(ranks) for _ in range(min(workers, len(jobs)))]
    todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    for item in (*jobs, *(None for _ in crew)):
        todo.put(item)
    ends: queue.SimpleQueue[End | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()

    def work(pool: RankPool) -> None:
        try:
            with pool:
                while (job := todo.get()) is not None and not stopped.is_set():
                    ends.put((job[0], _run(*job, pool, cache, timeout, execute)))
        except BaseException as error:
            ends.put(error)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in crew]
    for thread in threads:
        thread.start()
    try:
        for _ in jobs:
            end = ends.get()
            if isinstance(end, BaseException):
                raise end
            yield end
    finally:
        stopped.set()
        for pool, thread in zip(crew, threads, strict=True):
            while thread.is_alive():
                pool.kill()
                thread.join(0.1)


def _run(key: str, run: Run, pool: RankPool, cache: Cache, timeout: float, execute: Execute) -> Result:
    """Runs one job and keeps it, unless it was killed or hung: that may be the machine's doing."""
    began = time.monotonic()
    with cache.writing() as folder:
        try:
            weights = cache.root / f"warm-{trainer_digest()[:16]}"
            start = pool.run(warm_up, run.config, weights, world_size=1, timeout=timeout) if run.warm else None
            pool.run(execute, run, folder, start, world_size=run.config.world_size, timeout=timeout)
        except RunFailed as failure:
            seconds = round(time.monotonic() - began, 3)
            crash = Result(name=run.name, status="crash", seconds=seconds, message=str(failure), trace=failure.trace)
            return cache.add(key, run, folder, crash) if failure.trace else crash
        ok = Result(name=run.name, status="ok", seconds=round(time.monotonic() - began, 3))
        return cache.add(key, run, folder, ok)
