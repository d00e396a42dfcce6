"""The models the suite trains, small ones of the kinds that recipes train, and how a baseline runs."""

from __future__ import annotations

from typing import Any

from attune_lab.trainer.config import TrainerConfig

_RATE: dict[str, Any] = {"lr": 1e-3, "min_lr": 1e-4}
_SIZE: dict[str, Any] = {
    "hidden": 128,
    "heads": 4,
    "kv_groups": 2,
    "ffn": 256,
    "moe_ffn": 64,
    "lr": 1e-3,
    "min_lr": 1e-4,
}

WORKLOADS = {
    "dense": TrainerConfig(**_SIZE),
    "tied": TrainerConfig(**_SIZE, untie_embeddings=False, qk_layernorm=True, add_bias_linear=True),
    "sinks": TrainerConfig(**{**_SIZE, "kv_groups": 1}, softmax_type="learnable", attention_backend="unfused"),
    "mtp": TrainerConfig(**_SIZE, mtp_num_layers=1, untie_embeddings=False),
    "moe": TrainerConfig(**_SIZE, num_experts=8, shared_expert_size=64),
    "sigmoid": TrainerConfig(
        **_SIZE, num_experts=8, shared_expert_size=64, score_function="sigmoid", expert_bias=True, mtp_num_layers=1
    ),
    "deep": TrainerConfig(
        lr=1e-3, min_lr=1e-4, hidden=64, heads=4, kv_groups=4, ffn=128, num_layers=8, seq_len=128, gbs=4, mbs=1
    ),
    "dropout": TrainerConfig(**_SIZE, hidden_dropout=0.1),
    "fp8": TrainerConfig(**_SIZE, num_experts=8, fp8=True),
    "packed": TrainerConfig(**_SIZE, packed=True),
    "ragged": TrainerConfig(**_SIZE, ragged=True),
    "long": TrainerConfig(**_SIZE, rotary_base=500_000.0),
    "decoupled": TrainerConfig(**_SIZE, decoupled_lr=3e-4),
    "unbalanced": TrainerConfig(**_SIZE, num_experts=8, shared_expert_size=64, aux_loss_coeff=0.0),
    "padded": TrainerConfig(**_SIZE, num_experts=8, shared_expert_size=64, ragged=True, router_padding_mask=True),
    "biased": TrainerConfig(**_SIZE, num_experts=8, add_bias_linear=True),
    "sparse": TrainerConfig(**_SIZE | {"moe_ffn": 32}, num_experts=32, mbs=1),
}
"""By name. A baseline runs on one process, with micro-batches of 2 sequences (``deep``, ``sparse``: 1)."""

MODELS = tuple(WORKLOADS)[:9]
"""The models and numerics; the other workloads give a fault a condition it needs."""

TWINS: tuple[dict[str, Any], ...] = (
    {"mbs": 4},
    {"dp": 2, "use_distributed_optimizer": True},
    {"cross_entropy_fusion": True, "recompute_granularity": "full", "mbs": 8},
)
"""Legitimate variants of a baseline that calibrate the limits of the gate, as changes of its settings."""

BASELINE_PROBES = ("ragged", "aux", "attention", "perturbation")
CANDIDATE_PROBES = ("ragged", "aux", "attention", "perturbation", "repeat", "resume", "sgd")
