"""Small recipes and clusters the tests share."""

from __future__ import annotations

from typing import Any

from attune_lab.recipe import Recipe
from simulator.hardware import ClusterSpec, parse_cluster

MOE: dict[str, Any] = {
    "tp": 2, "pp": 4, "vpp": 2, "ep": 8, "etp": 1, "mbs": 1, "gbs": 256, "seq_len": 4096, "num_layers": 32,
    "hidden": 4096, "heads": 32, "gqa": True, "kv_groups": 8, "kv_channels": 128, "ffn": 14336, "moe_ffn": 2048,
    "num_experts": 64, "topk": 2, "vocab_size": 128256, "sequence_parallel": True,
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True, "bf16": True,
    "dispatcher": "alltoall", "grouped_gemm": True, "add_bias_linear": False, "swiglu": True,
    "untie_embeddings": True, "normalization": "RMSNorm", "position_embedding": "rope",
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "log_interval": 1,
}  # fmt: skip
"""A sound 32-layer MoE recipe."""

ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def moe(**edits: Any) -> Recipe:
    """The MoE recipe with edits; None removes a setting."""
    return Recipe("megatron-lm", MOE, ENVIRONMENT).with_settings(edits)


def dense(**edits: Any) -> Recipe:
    """The same as a dense model."""
    gone = {"num_experts": None, "topk": None, "moe_ffn": None, "ep": None, "etp": None, "dispatcher": None}
    return moe(**{**gone, "grouped_gemm": None, **edits})


def cluster(name: str = "64xH100-SXM5-80GB") -> ClusterSpec:
    """A cluster by name."""
    return parse_cluster(name)
