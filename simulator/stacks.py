"""What training frameworks do where a job does not say.

A stack is a framework as far as the physics can tell frameworks apart: its defaults, and its own value of those
constants in which it differs from Megatron-Core (`simulator.physics.physics_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from simulator.job import Graph, Recompute


@dataclass(frozen=True)
class Stack:
    """One kind of framework.

    Attributes:
        name: key of `simulator.physics.physics_of`.
        defaults: columns of `simulator.job.make_jobs` where they are not Megatron-Core's.
        memory_statistic: what it prints as peak memory where a table does not say.
        prints_first_rank: the peak it prints is that of the first rank, not of the fullest.
    """

    name: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    memory_statistic: str = "allocated"
    prints_first_rank: bool = False


def _stack(name: str, **defaults: Any) -> Stack:
    own = {key: defaults.pop(key) for key in ("memory_statistic", "prints_first_rank") if key in defaults}
    return Stack(name, MappingProxyType(defaults), **own)


MEGATRON = _stack("megatron")
# Source: NVIDIA-NeMo/Megatron-Bridge performance recipes: gradients kept and reduced in BF16, Transformer Engine's
# cross-entropy, fused router, TP communication in user buffers (dense models), manual garbage collection, NUMA binding.
_BRIDGE = _stack(
    "megatron-bridge", grad_reduce_fp32=False, main_grad_bytes=2.0, cross_entropy_fusion=True,
    router_fusion=True, tp_comm_overlap=True, host_tuned=2,
)  # fmt: skip
_EAGER = {"sequence_parallel": False}
_PORTABLE = {"portable_attention": True}  # flash-attention 2 or Triton's on every accelerator
# DeepSpeed's engine without ZeRO keeps and reduces gradients in FP16, after the last backward pass.
_DEEPSPEED_3D = {
    "fused_attention": False,
    "zero_stage": 0,
    "partitioned_sends": True,
    "overlap_grad_reduce": False,
    "grad_reduce_fp32": False,
    "main_grad_bytes": 2.0,
    **_EAGER,
}
_STACKS = (
    MEGATRON,
    _BRIDGE,
    # Megatron-LM before flash attention (2021-2022): the score matrix goes through memory.
    _stack("megatron-2022", fused_attention=False, zero_stage=0, partitioned_sends=True),
    _stack("megatron-deepspeed", **_DEEPSPEED_3D),
    # A profile of one layer composed into steps; PyTorch's cross-entropy on FP16 logits, FP16 parameters stepped.
    _stack("vtrain-trace", **_DEEPSPEED_3D, traced=True, cross_entropy_fusion=True, main_param_bytes=0.0),
    _stack("deepspeed", zero_stage=3, **_EAGER),
    _stack("nanotron", memory_statistic="reserved", prints_first_rank=True, zero_stage=0, **_PORTABLE),
    # Its MPT computes the loss with the fused kernel of flash-attention (mosaicml/llm-foundry@8c8dd48 ``loss_fn``).
    _stack("llm-foundry", zero_stage=3, cross_entropy_fusion=True, **_PORTABLE),
    _stack("torchtitan", zero_stage=3, **_PORTABLE),
    # XLA compiles the whole step and, by its models' default, recomputes every layer.
    _stack("maxtext", zero_stage=3, recompute=Recompute.FULL, cuda_graph=Graph.FULL_ITERATION, compiled=True),
    _stack("nemo", tp_comm_overlap=True),
    # InternEvo keeps BF16 gradients, reduces them under the backward pass and broadcasts parameters after the step
    # (InternLM/InternEvo@c628a8c configs/7B_sft.py: overlap_sync_grad, not overlap_sync_param, buckets of 512 MiB).
    _stack(
        "internevo",
        overlap_param_gather=False,
        grad_reduce_fp32=False,
        main_grad_bytes=2.0,
        bucket_bytes=2**29,
        **_EAGER,
    ),
)
_BY_NAME = MappingProxyType({stack.name: stack for stack in _STACKS})
_FRAMEWORKS = MappingProxyType(
    {
        "Megatron-Bridge": "megatron-bridge",
        "Megatron-DeepSpeed": "megatron-deepspeed",
        "DeepSpeed": "deepspeed",
        "DeepSpeed-ZeRO2": "deepspeed",
        "DeepSpeed-ZeRO3": "deepspeed",
        "ColossalAI": "deepspeed",
        "nanotron": "nanotron",
        "llm-foundry": "llm-foundry",
        "torchtitan": "torchtitan",
        "MaxText": "maxtext",
        "PaxML": "maxtext",
        "InternEvo": "internevo",
        "vTrain trace": "vtrain-trace",
        "NeMo": "nemo",
    }
)


def stack_of(framework: str, version: str = "") -> Stack:
    """The stack of a framework as measurement tables name it; Megatron-Core's for one that is not known."""
    if framework == "Megatron-LM" and any(year in version for year in ("2021", "2022")):
        return _BY_NAME["megatron-2022"]
    return _BY_NAME[_FRAMEWORKS.get(framework, MEGATRON.name)]
