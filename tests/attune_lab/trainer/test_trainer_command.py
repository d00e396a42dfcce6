"""`python -m attune_lab.trainer`: alone, under torchrun, and with input that cannot be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attune_lab.contracts import UserError
from attune_lab.gate.curves_io import read_curve
from attune_lab.trainer.__main__ import MOST_WEIGHTS, main, only_run_in, read_config, weights
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.state import load

TINY = TrainerConfig(hidden=16, heads=2, kv_groups=2, ffn=32, vocab_size=64, num_layers=2, gbs=4, seq_len=16)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(TINY.model_copy(update={"train_iters": 3}).model_dump_json())
    return file


def test_alone(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(config), "--out", str(tmp_path / "run"), "--probe", "repeat"]) == 0
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["config.json", "signals.json", "train.log"]
    assert capsys.readouterr().out == (tmp_path / "run" / "train.log").read_text()
    assert len(read_curve(tmp_path / "run").steps) == 3


def test_a_warm_start_has_learnt(config: Path, tmp_path: Path) -> None:
    for out, options in (("drawn", []), ("warm", ["--warm", str(tmp_path / "weights")])):
        assert main([str(config), "--out", str(tmp_path / out), *options]) == 0
    drawn, warm = (read_curve(tmp_path / out).loss[0] for out in ("drawn", "warm"))
    assert warm < 0.8 * drawn


def test_under_torchrun_as_alone(tmp_path: Path) -> None:
    losses = []
    for dp in (1, 2):
        file, out = tmp_path / f"{dp}.yaml", tmp_path / f"run {dp}"
        values = TINY.model_copy(update={"train_iters": 2, "dp": dp}).model_dump(exclude_defaults=True)
        file.write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"] if dp == 2 else []
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "attune_lab.trainer", str(file), "--out", str(out)],
            capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("lm loss") == 2
        losses.append(read_curve(out).loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{bad", "line 1: is neither JSON nor YAML"),
        ("- 1", "holds no settings"),
        ("1: 2", "holds no settings"),
        ("layers: 4", "layers: no such setting"),
        ("dp: many", "dp: Input should be a valid integer"),
        ("gbs: 3", "gbs must be a multiple of mbs"),
        ("[" * 1_000, "is neither JSON nor YAML"),
    ],
)
def test_settings_that_cannot_be_trained(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_config(file)


def test_json_and_yaml_say_the_same(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hidden: 16\nheads: 2\nffn: 32\nvocab_size: 64\nnum_layers: 2\ngbs: 4\nseq_len: 16\ntrain_iters: 3")
    assert read_config(file) == read_config(config)


def test_exit_codes(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err
    four = tmp_path / "four.yaml"
    four.write_text("dp: 4")
    assert main([str(four), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("need 4 ranks and 1 run: start torchrun with --nproc-per-node 4.\n")
    (tmp_path / "file").touch()
    assert main([str(config), "--out", str(tmp_path / "file" / "out")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_only_rank_0_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main([str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "setting", ["lr: .nan", "clip_grad: -.inf", "vocab_size: 2000000000000", "num_layers: 10000000000"]
)
def test_numbers_that_no_run_survives_are_refused_before_it_starts(setting: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"{setting}\n")
    with pytest.raises(UserError, match=r"finite|at most|greater than"):
        read_config(tmp_path / "config.yaml")


def test_the_suite_is_far_from_the_largest_model() -> None:
    assert weights(TrainerConfig(num_experts=8)) < MOST_WEIGHTS / 100


@pytest.fixture
def saved(config: Path, tmp_path: Path) -> dict[str, Any]:
    assert main([str(config), "--out", str(tmp_path / "first"), "--save", str(tmp_path / "ok.pt")]) == 0
    return load(tmp_path / "ok.pt")


DAMAGES: dict[str, dict[str, Any]] = {
    "step of text": {"step": "x"},
    "step below 0": {"step": -1},
    "no step left": {"step": 3},
    "no weights": {"weights": None},
    "a weight that is a number": {"weights": {"embedding": 3}},
    "whole numbers": {"weights": {"embedding": torch.ones(3, dtype=torch.int8)}},
    "moments of another shape": {"mean": {"embedding": torch.ones(2)}},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_in_one_sentence(
    damage: str, saved: dict[str, Any], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(saved | DAMAGES[damage], tmp_path / "bad.pt")
    capsys.readouterr()
    assert main([str(config), "--out", str(tmp_path / "second"), "--start", str(tmp_path / "bad.pt")]) == 2
    told = capsys.readouterr().err
    assert "bad.pt" in told
    assert told.count("\n") == 1


def test_two_runs_do_not_write_into_one_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    with only_run_in(tmp_path / "run"):
        assert main([str(config), "--out", str(tmp_path / "run")]) == 2
    assert "another run is writing there" in capsys.readouterr().err
    assert main([str(config), "--out", str(tmp_path / "run")]) == 0


def test_ctrl_c_ends_a_run_in_one_sentence(config: Path, tmp_path: Path) -> None:
    config.write_text(TINY.model_copy(update={"train_iters": 10_000}).model_dump_json())
    command = [sys.executable, "-m", "attune_lab.trainer", str(config), "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        started.stdout.readline()  # it trains
        started.send_signal(signal.SIGINT)
        told = started.communicate()[1]
    assert (started.returncode, told.count("\n")) == (130, 1)
    assert read_curve(tmp_path / "run").steps[0] == 1
