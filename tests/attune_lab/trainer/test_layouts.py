"""Every layout trains the same model: losses, gradients and data agree with the single process to rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from attune_lab.signals.schema import StepSignals
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.loop import RunResult, train
from attune_lab.trainer.pool import RankPool
from experiments.faults.suite import layouts

STEPS = 3
TINY: dict[str, Any] = {
    "hidden": 32, "heads": 4, "kv_groups": 4, "ffn": 64, "moe_ffn": 16, "vocab_size": 128, "seq_len": 32,
    "gbs": 8, "mbs": 2, "train_iters": STEPS, "bf16": False, "ragged": True, "packed": True, "qk_layernorm": True,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"untie_embeddings": False, "mtp_num_layers": 1, "add_bias_linear": True},
    "moe": {
        "num_experts": 4, "shared_expert_size": 16, "z_loss_coeff": 1e-3, "score_function": "sigmoid",
        "expert_bias": True, "mtp_num_layers": 1,
    },
}  # fmt: skip
EXTRAS: list[dict[str, Any]] = [
    {},
    {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    {"recompute_granularity": "full", "attention_backend": "chunked"},
    {"recompute_granularity": "selective", "grouped_gemm": True, "cross_entropy_fusion": True},
    {"schedule": "gpipe", "num_buckets": 5},
    {"dispatcher": "allgather", "overlap_grad_reduce": True},
    {"cp_comm_type": "a2a", "attention_backend": "unfused"},
]


def run_ranks(rank: int, world_size: int, config: TrainerConfig) -> RunResult:
    """One run, as a pool calls it."""
    return train(config)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


@pytest.fixture(scope="module", params=list(MODELS))
def reference(request: pytest.FixtureRequest, pool: RankPool) -> tuple[TrainerConfig, RunResult]:
    config = TrainerConfig(**TINY, **MODELS[request.param])
    return config, pool.run(run_ranks, config, world_size=1)


def legal(base: TrainerConfig) -> list[TrainerConfig]:
    """Every layout of 1, 2 and 4 ranks with interleaving where it can be, each with one of the extras."""
    found = []
    for layout in layouts():
        for vpp in (1, 2) if layout["pp"] == 2 else (1,):
            for extra in EXTRAS[len(found) % len(EXTRAS) :] + EXTRAS:
                values = {**base.model_dump(), **layout, "vpp": vpp, **extra}
                try:
                    found.append(TrainerConfig.model_validate(values))
                    break
                except ValueError:
                    continue
    return found


def relative_error(step: StepSignals, truth: StepSignals) -> float:
    """Largest relative error of a gradient's sketch over the parameters."""
    assert step.grad_sketch.keys() == truth.grad_sketch.keys()
    errors = []
    for name, expected in truth.grad_sketch.items():
        difference = math.dist(step.grad_sketch[name], expected)
        errors.append(difference / max(math.hypot(*expected), 1e-12))
    return max(errors)


def test_all_layouts_train_the_same_model(reference: tuple[TrainerConfig, RunResult], pool: RankPool) -> None:
    config, truth = reference
    configs = legal(config)
    assert len(configs) >= 24
    for candidate in configs:
        result = pool.run(run_ranks, candidate, world_size=candidate.world_size)
        what = candidate.model_dump(exclude_defaults=True)
        assert result.loss == pytest.approx(truth.loss, rel=1e-6), what
        assert result.grad_norm == pytest.approx(truth.grad_norm, rel=1e-5), what
        for step, expected in zip(result.signals.steps, truth.signals.steps, strict=True):
            for ledger in ("samples", "labels", "positions", "tokens", "sequences", "expert_load", "dropped"):
                assert getattr(step, ledger) == getattr(expected, ledger), (what, ledger)
            assert step.replicas == step.stale == (), what
            assert step.loss == pytest.approx(step.logged["lm loss"], rel=1e-6), what
        assert relative_error(result.signals.steps[0], truth.signals.steps[0]) < 3e-5, what
