"""Rank processes that are fed runs: real processes, real deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from attune_lab.trainer.pool import RankPool, RunFailed


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


def total(rank: int, world_size: int, value: float) -> tuple[int, float]:
    """The group's size and the sum over ranks of ``value`` times rank + 1."""
    x = torch.tensor([value * (rank + 1)])
    dist.all_reduce(x)
    return dist.get_world_size(), float(x)


def many_groups(rank: int, world_size: int) -> tuple[int, int]:
    """Open descriptors and threads of rank 0, before it leaves a run that made, used and kept many groups."""
    groups = [dist.new_group(list(range(size))) for size in range(1, world_size + 1) for _ in range(5)]
    x = torch.ones(1)
    for group in groups:
        if rank in dist.get_process_group_ranks(group):
            dist.all_reduce(x, group=group)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def raise_on(rank: int, world_size: int, culprit: int) -> None:
    if rank == culprit:
        raise ValueError(f"wrong on {culprit}\nand more")
    dist.barrier()


def kill_on(rank: int, world_size: int, culprit: int) -> None:
    if rank == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang_on(rank: int, world_size: int, culprit: int) -> None:
    if rank == culprit:
        time.sleep(1000)
    dist.barrier()


def pids(rank: int, world_size: int) -> list[int]:
    mine = [0] * world_size
    dist.all_gather_object(mine, os.getpid())
    return mine


def unpicklable(rank: int, world_size: int) -> object:
    return lambda: rank


@pytest.mark.parametrize("size", [4, 1, 2, 3])
def test_a_run_uses_the_first_ranks(pool: RankPool, size: int) -> None:
    assert pool.run(total, 0.5, world_size=size) == (size, 0.25 * size * (size + 1))


def test_ranks_stay_alive_between_runs(pool: RankPool) -> None:
    first = pool.run(pids)
    assert len(set(first)) == 4
    assert pool.run(pids, world_size=2) == first[:2]
    assert pool.run(pids) == first


def test_groups_leak_neither_descriptors_nor_threads(pool: RankPool) -> None:
    """What a run leaked would add up over 48 of them; a connection that is just being closed does not."""
    descriptors, threads = pool.run(many_groups)
    ours = len(os.listdir("/proc/self/fd"))
    for _ in range(48):
        pool.run(many_groups, world_size=2)
    then = pool.run(many_groups)
    assert then[0] - descriptors < 12
    assert then[1] - threads < 12
    assert len(os.listdir("/proc/self/fd")) - ours < 12


@pytest.mark.parametrize("culprit", [0, 3])
def test_an_exception_names_its_rank_and_the_pool_goes_on(pool: RankPool, culprit: int) -> None:
    with pytest.raises(RunFailed, match=f"^rank {culprit}: ValueError: wrong on {culprit}$") as failure:
        pool.run(raise_on, culprit)
    assert failure.value.rank == culprit
    assert "in raise_on" in failure.value.trace
    assert failure.value.trace.endswith("and more")
    assert pool.run(total, 1.0) == (4, 10.0)


@pytest.mark.parametrize("culprit", [0, 2])
def test_a_killed_rank_is_named_and_replaced(pool: RankPool, culprit: int) -> None:
    with pytest.raises(RunFailed, match=f"^rank {culprit} died with exit code -9$"):
        pool.run(kill_on, culprit)
    assert pool.run(total, 1.0) == (4, 10.0)


def test_a_rank_killed_between_runs_is_named_and_replaced(pool: RankPool) -> None:
    victim = pool.run(pids)[1]
    os.kill(victim, signal.SIGKILL)
    _wait_until_gone([victim])
    with pytest.raises(RunFailed, match=r"^rank 1 died with exit code -9$"):
        pool.run(total, 1.0)
    assert pool.run(total, 1.0) == (4, 10.0)


def test_a_rank_that_hangs_ends_with_the_time_given(pool: RankPool) -> None:
    hung = pool.run(pids)
    with pytest.raises(RunFailed, match=r"^ranks 0, 1, 2, 3 were not done within 1 s$"):
        pool.run(hang_on, 1, timeout=1.0)
    _wait_until_gone(hung)
    assert pool.run(total, 1.0) == (4, 10.0)


def test_a_result_that_cannot_be_sent_is_a_failure(pool: RankPool) -> None:
    with pytest.raises(RunFailed, match=r"^rank 0: "):
        pool.run(unpicklable)
    assert pool.run(total, 1.0) == (4, 10.0)


def test_more_ranks_than_the_pool_has(pool: RankPool) -> None:
    with pytest.raises(ValueError, match="a pool of 4 ranks cannot run 5"):
        pool.run(total, 1.0, world_size=5)


def test_two_pools_run_side_by_side() -> None:
    sums: dict[int, list[float]] = {2: [], 3: []}

    def feed(size: int) -> None:
        with RankPool(size) as ranks:
            sums[size] = [ranks.run(total, float(i))[1] for i in range(10)]

    threads = [threading.Thread(target=feed, args=(size,)) for size in sums]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {2: [3.0 * i for i in range(10)], 3: [6.0 * i for i in range(10)]}


def test_ranks_may_be_spawned() -> None:
    with RankPool(2, start_method="spawn") as ranks:
        assert ranks.run(total, 1.0) == (2, 3.0)


def test_another_thread_can_end_a_run() -> None:
    with RankPool(2) as ranks:
        ranks.run(total, 1.0)
        timer = threading.Timer(0.3, ranks.kill)
        timer.start()
        with pytest.raises(RunFailed, match="died with exit code -9"):
            ranks.run(hang_on, 0)
        timer.join()


def test_leaving_the_pool_ends_its_ranks() -> None:
    with RankPool(2) as ranks:
        processes = ranks.run(pids)
    _wait_until_gone(processes)


PARENT = """
import sys
sys.path[:0] = {path!r}
from attune_lab.trainer.pool import RankPool
from test_pool import hang_on, pids
if __name__ == "__main__":
    with RankPool(2) as ranks:
        print(*ranks.run(pids), flush=True)
        ranks.run(hang_on, 0)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_rank_outlives_its_parent(tmp_path: Path, ending: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[3])]))
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        ranks = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(ending)
        try:
            _wait_until_gone(ranks)
            assert parent.wait(timeout=30) != 0
        finally:
            parent.kill()  # or a failure would wait for it forever
    assert len(ranks) == 2


def _wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in processes):
        assert time.monotonic() < deadline, "the ranks are still there"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
