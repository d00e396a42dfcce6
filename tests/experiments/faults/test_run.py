"""Each run once, the largest first, from the cache where it is; an interrupted suite goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from attune_lab.trainer.config import TrainerConfig
from experiments.faults.cache import Cache
from experiments.faults.plan import Run
from experiments.faults.run import Progress, forget, run_all


def toy(rank: int, world_size: int, run: Run, out: Path, start: Path | None) -> None:
    """Writes how many ranks took part; misbehaves as the run's name says."""
    x = torch.ones(1)
    dist.all_reduce(x)
    if run.config.seed == 13:
        raise ValueError("thirteen")
    if run.config.seed == 14:
        time.sleep(100)
    if rank == 0:
        (out / "train.log").write_text(f"{int(x)} ranks, seed {run.config.seed}")


def run(name: str, *, dp: int = 1, seed: int = 1) -> Run:
    return Run(name, TrainerConfig(dp=dp, seed=seed))


def test_every_run_is_answered_and_equal_ones_run_once(tmp_path: Path) -> None:
    runs = [run("a"), run("b", dp=2), run("c", dp=4), run("b again", dp=2)]
    told: list[Progress] = []
    ends = run_all(runs, faults={}, cache=Cache(tmp_path), tell=told.append, execute=toy)
    logs = [(ends[r].folder / "train.log").read_text() for r in runs]
    assert logs == [f"{n} ranks, seed 1" for n in (1, 2, 4, 2)]
    assert [(p.done, p.total, p.cached) for p in told] == [(n, 3, False) for n in (1, 2, 3)]
    assert sum(p.share for p in told) == pytest.approx(1.0)
    assert {p.result.name for p in told} == {"a", "b", "c"}


def test_largest_first_and_the_cache_is_asked(tmp_path: Path) -> None:
    names: list[str] = []
    runs = [run("one"), run("four", dp=4), run("two", dp=2)]
    run_all(runs, faults={}, cache=Cache(tmp_path), workers=1, tell=lambda p: names.append(p.result.name), execute=toy)
    assert names == ["four", "two", "one"]
    told: list[Progress] = []
    run_all([*runs, run("new", seed=2)], faults={}, cache=Cache(tmp_path), tell=told.append, execute=toy)
    assert [p.cached for p in told] == [True, True, True, False]


def test_a_crash_is_a_result_and_kept(tmp_path: Path) -> None:
    runs = [run("bad", dp=2, seed=13), run("good", dp=2)]
    ends = run_all(runs, faults={}, cache=Cache(tmp_path), workers=1, execute=toy)
    assert [ends[r].result.status for r in runs] == ["crash", "ok"]
    assert ends[runs[0]].result.message in {f"rank {rank}: ValueError: thirteen" for rank in (0, 1)}  # whoever is first
    told: list[Progress] = []
    run_all(runs, faults={}, cache=Cache(tmp_path), tell=told.append, execute=toy)
    assert [p.cached for p in told] == [True, True]


def test_a_hang_is_a_crash_that_is_not_kept(tmp_path: Path) -> None:
    hung = run("hung", dp=2, seed=14)
    end = run_all([hung], faults={}, cache=Cache(tmp_path), timeout=1.0, execute=toy)[hung]
    assert (end.result.status, end.folder.exists()) == ("crash", False)
    assert "were not done within 1 s" in end.result.message


def test_what_is_forgotten_runs_again(tmp_path: Path) -> None:
    one, two = run("one"), run("two", seed=2)
    run_all([one, two], faults={}, cache=Cache(tmp_path), execute=toy)
    forget([one], faults={}, cache=Cache(tmp_path))
    told: list[Progress] = []
    run_all([one, two], faults={}, cache=Cache(tmp_path), tell=told.append, execute=toy)
    assert [(p.result.name, p.cached) for p in told] == [("two", True), ("one", False)]


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_run import run, toy
from experiments.faults.cache import Cache
from experiments.faults.run import run_all
if __name__ == "__main__":
    runs = [run("quick", dp=2), run("slow", dp=1, seed=14)]
    tell = lambda progress: print(progress.result.name, flush=True)
    run_all(runs, faults={{}}, cache=Cache(Path(sys.argv[1])), tell=tell, execute=toy)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_suite_keeps_what_is_finished(tmp_path: Path, ending: signal.Signals) -> None:
    script, cache = tmp_path / "suite.py", tmp_path / "cache"
    script.write_text(SCRIPT.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[3])]))
    with subprocess.Popen(
        [sys.executable, str(script), str(cache)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as suite:
        assert suite.stdout is not None
        assert suite.stdout.readline() == "quick\n"
        suite.send_signal(ending)
        assert suite.wait(timeout=30) in (-ending, 130)
    told: list[Progress] = []
    run_all([run("quick", dp=2)], faults={}, cache=Cache(cache), tell=told.append, execute=toy)
    assert [p.cached for p in told] == [True]
    assert len(os.listdir(cache)) == 1
