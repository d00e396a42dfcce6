"""Finished runs are found again, damaged ones are not, and an entry is whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attune_lab.contracts import EnvironmentFault
from attune_lab.trainer.config import TrainerConfig
from experiments.faults import cache as module
from experiments.faults.cache import Cache, Result, key_of, source_of
from experiments.faults.plan import Fault, Run

RUN = Run("a", TrainerConfig())
FACTOR = 2.0


def scale(original: Any, x: float) -> float:
    return FACTOR * helper(original(x))


def helper(x: float) -> float:
    return x + 1


def scaled_by(factor: float) -> Callable[..., float]:
    return lambda original, x: factor * original(x)


def fault(patch: Callable[..., Any], name: str = "F") -> Fault:
    return Fault(name, "", "", "", {"optimizer.step": patch})


def store(cache: Cache, key: str = "k", text: str = "log") -> Result:
    with cache.writing() as folder:
        (folder / "train.log").write_text(text)
        return cache.add(key, RUN, folder, Result(name="a", status="ok", seconds=1.5))


def test_an_entry_is_found_again_with_its_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.find("k") is None
    stored = store(cache)
    assert Cache(tmp_path).find("k") == stored
    assert (cache.folder("k") / "train.log").read_text() == "log"
    assert TrainerConfig.model_validate_json((cache.folder("k") / "config.json").read_text()) == RUN.config
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


@pytest.mark.parametrize("name", ["train.log", "config.json", "result.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_entry_is_not_found_and_replaced(tmp_path: Path, name: str, damage: str) -> None:
    cache = Cache(tmp_path)
    stored = store(cache)
    file = cache.folder("k") / name
    file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-1])
    assert cache.find("k") is None
    assert store(cache) == stored
    assert cache.find("k") == stored
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_the_first_of_two_runners_keeps_its_entry(tmp_path: Path) -> None:
    first = store(Cache(tmp_path), text="first")
    assert store(Cache(tmp_path), text="second") == first
    assert (tmp_path / "k" / "train.log").read_text() == "first"


def test_many_writers_of_a_damaged_entry_leave_one_whole(tmp_path: Path) -> None:
    store(Cache(tmp_path))
    (tmp_path / "k" / "train.log").unlink()
    threads = [threading.Thread(target=store, args=(Cache(tmp_path), "k", str(i))) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Cache(tmp_path).find("k") is not None
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(FileNotFoundError), cache.writing() as folder:
        (folder / "train.log").rename(folder / "absent" / "train.log")
    assert list(tmp_path.iterdir()) == []


def test_the_leftover_of_a_killed_runner_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from experiments.faults.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).writing() as folder:\n"
        "    (folder / 'train.log').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with Cache(tmp_path).writing() as ours:
        Cache(tmp_path)
        assert list(tmp_path.iterdir()) == [ours]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="name another folder"):
        Cache(tmp_path / "file" / "cache")


def test_the_key_has_everything_that_decides_a_run_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(RUN, None)
    assert key_of(Run("another name", TrainerConfig()), None) == key
    others = [
        key_of(Run("a", TrainerConfig(seed=2)), None),
        key_of(Run("a", TrainerConfig(), probes=("sgd",)), None),
        key_of(Run("a", TrainerConfig(), warm=True), None),
        key_of(Run("a", TrainerConfig(), fault="F"), fault(scale)),
        key_of(Run("a", TrainerConfig(), fault="F"), fault(helper)),
        key_of(Run("a", TrainerConfig(), fault="G"), fault(scale)),
    ]
    monkeypatch.setattr(module, "trainer_digest", lambda: "another trainer")
    assert len({key, *others, key_of(RUN, None)}) == 8


def test_the_source_of_a_patch_follows_what_it_uses() -> None:
    assert "x + 1" in "".join(source_of(scale))
    assert repr(FACTOR) in source_of(scale)
    assert source_of(scaled_by(2.0)) == source_of(scaled_by(2.0)) != source_of(scaled_by(3.0))
    assert source_of(partial(scale, x=1.0)) == source_of(partial(scale, x=1.0)) != source_of(partial(scale, x=2.0))


@pytest.mark.parametrize(
    "result",
    [
        '{"name": "x", "status": "ok", "seconds": 1, "files": {}}',
        '{"name": "x", "status": "ok", "seconds": 1, "files": {"\\u0000": "0"}}',
        '{"name": "x", "status": "ok", "seconds": 1, "files": {"../../etc/hostname": "0"}}',
        "[",
    ],
)
def test_an_edited_result_is_no_entry(tmp_path: Path, result: str) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "result.json").write_text(result)
    assert Cache(tmp_path).find("key") is None


@pytest.mark.parametrize("rest", ["foo", "x-y", "-1-y", "99999999999999999999-y"])
def test_folders_with_odd_names_are_no_reason_to_fail(tmp_path: Path, rest: str) -> None:
    (tmp_path / f"{module._PARTIAL}-{rest}").mkdir()
    assert Cache(tmp_path).find("key") is None


def test_a_folder_that_cannot_be_written_to() -> None:
    with pytest.raises(EnvironmentFault, match="cannot write"):
        Cache(Path("/proc/self"))
