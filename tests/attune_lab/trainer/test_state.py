"""Checkpoints fit every layout, and a resumed run goes on as if it had not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attune_lab.contracts import UserError
from attune_lab.trainer import state as states
from attune_lab.trainer.config import TrainerConfig, parse_config
from attune_lab.trainer.loop import RunResult, train
from attune_lab.trainer.pool import RankPool

MODEL: dict[str, Any] = {
    "hidden": 32, "heads": 4, "kv_groups": 4, "ffn": 64, "moe_ffn": 16, "vocab_size": 128, "seq_len": 32, "gbs": 8,
    "bf16": False, "num_experts": 4, "expert_bias": True, "score_function": "sigmoid", "mtp_num_layers": 1,
    "untie_embeddings": False, "train_iters": 6,
}  # fmt: skip


def run_part(rank: int, world_size: int, config: TrainerConfig, start: Path | None, save: Path | None) -> RunResult:
    """A run from one checkpoint to another, as a pool calls it."""
    return train(config, start=start, save=save, record=False)


def test_a_run_goes_on_in_another_layout(tmp_path: Path) -> None:
    whole = train(TrainerConfig(**MODEL), record=False)
    layout = {"tp": 2, "pp": 2, "sequence_parallel": True, "ep": 2}
    other = {"dp": 2, "ep": 2, "use_distributed_optimizer": True, "cp": 2}
    with RankPool(4) as pool:
        first = TrainerConfig(**{**MODEL, **layout, "train_iters": 3})
        halves = pool.run(run_part, first, None, tmp_path / "half.pt").loss
        second = TrainerConfig(**{**MODEL, **other})
        halves += pool.run(run_part, second, tmp_path / "half.pt", None).loss
    assert halves == pytest.approx(whole.loss, rel=1e-6)


def test_a_run_goes_on_bit_by_bit_in_its_own_layout(tmp_path: Path) -> None:
    values = {**MODEL, "bf16": True}
    whole = train(TrainerConfig(**values), record=False).loss
    first = train(TrainerConfig(**{**values, "train_iters": 3}), save=tmp_path / "half.pt", record=False).loss
    assert first + train(TrainerConfig(**values), start=tmp_path / "half.pt", record=False).loss == whole


def test_the_same_run_twice_is_the_same() -> None:
    config = TrainerConfig(**{**MODEL, "bf16": True, "hidden_dropout": 0.1})
    assert train(config).signals == train(config).signals


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 broken"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no checkpoint of the trainer"):
        states.load(path)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"step": 0, "weights": Evil(), "mean": {}, "square": {}}, tmp_path / "evil.pt")
    with pytest.raises(UserError):
        states.load(tmp_path / "evil.pt")
    assert not (tmp_path / "touched").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    train(TrainerConfig(**{**MODEL, "train_iters": 1}), save=tmp_path / "a.pt", record=False)
    with pytest.raises(UserError, match=r"the checkpoint lacks layers\.4"):
        train(TrainerConfig(**{**MODEL, "num_layers": 6}), start=tmp_path / "a.pt", record=False)
    with pytest.raises(UserError, match="the checkpoint"):
        train(TrainerConfig(**{**MODEL, "hidden": 64}), start=tmp_path / "a.pt", record=False)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tp": 3}, "kv_groups must be 1 or a multiple of tp"),
        ({"vpp": 2}, "vpp above 1 needs pp above 1"),
        ({"num_experts": 4, "tp": 2}, "a MoE with tp above 1 needs sequence_parallel"),
        ({"ep": 2}, "ep and etp need num_experts"),
        ({"mbs": 3}, "gbs must be a multiple of mbs"),
        ({"lr": "fast"}, "lr: Input should be a valid number"),
        ({"speed": 1}, "speed: no such setting"),
        ({"hiden": 64}, "hiden: no such setting; did you mean hidden"),
        ({"adam_beta1": 7}, "adam_beta1: Input should be less than 1"),
        ({"norm_epsilon": -1.0}, "norm_epsilon: Input should be greater than 0"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        parse_config(values)
    assert "\n" not in str(caught.value)
