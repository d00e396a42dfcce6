"""What training frameworks do where a job does not say.

A stack is a framework as far as the physics can tell frameworks apart: its defaults, and its own value of those
constants in which it differs from Megatron-Core (`simulator.posterior.Posterior.physics`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from simulator.job import Graph


@dataclass(frozen=True)
class Stack:
    """One kind of framework.

    Attributes:
        name: key of `simulator.posterior.Posterior.physics`.
        interconnect: network of the cluster its published measurements come from.
        defaults: columns of `simulator.job.make_jobs` where they are not Megatron-Core's.
        pipelined, sharded: further ones, with a pipeline and with a sharded optimizer.
        memory_statistic: what it prints as peak memory where a table does not say.
        prints_first_rank: the peak it prints is that of the first rank, not of the fullest.
        splits_by_cost: pipeline stages get layers by the cost of all blocks, not by their number.
        interleaves: its pretraining recipes cut pipelines into single layers where a table does not say.
        recomputes: recomputation by default, in the words of measurement tables; blank for none.
        stalls_from: (GPUs, tensor ranks) from which on its published pipelines stall in every transfer: seen in the
            measurements, not explained.
        whole_in_pipeline: FSDP keeps weights and gradients whole between the micro-batches of a pipeline.
    """

    name: str
    interconnect: str = "ib"
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    pipelined: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    sharded: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    memory_statistic: str = "allocated"
    prints_first_rank: bool = False
    splits_by_cost: bool = False
    interleaves: bool = False
    recomputes: str = ""
    whole_in_pipeline: bool = False
    stalls_from: tuple[float, float] = (math.inf, math.inf)

    def columns(self, n_gpus: int, tp: int, pp: int, zero_stage: int) -> dict[str, Any]:
        """What a run with these sizes has where it does not say."""
        pipelined = self.pipelined if pp > 1 else {}
        stalled = pp > 1 and (n_gpus >= self.stalls_from[0] or tp >= self.stalls_from[1])
        stalls = {"stalled_sends": True} if stalled else {}
        return {**self.defaults, **pipelined, **stalls, **(self.sharded if zero_stage > 0 else {})}


_OWN = {"memory_statistic", "prints_first_rank", "splits_by_cost", "interleaves", "recomputes", "whole_in_pipeline"}


def _stack(name: str, **defaults: Any) -> Stack:
    own = {key: defaults.pop(key) for key in _OWN & set(defaults)}
    return Stack(name, defaults=MappingProxyType(defaults), **own)


MEGATRON = _stack("megatron")
# Source: NVIDIA-NeMo/Megatron-Bridge performance recipes: gradients kept and reduced in BF16, FP8 weights without a
# BF16 original, Transformer Engine's cross-entropy, fused router, TP communication in user buffers (dense models),
# manual garbage collection, NUMA binding.
_BRIDGE = _stack(
    "megatron-bridge", grad_reduce_fp32=False, main_grad_bytes=2.0, cross_entropy_fusion=True,
    router_fusion=True, tp_comm_overlap=True, host_tuned=2, fp8_param_gather=True,
)  # fmt: skip
# Virtual stages are not told in arXiv 2504.14960, yet its runs on eight times the GPUs at one batch keep 86 % of their
# speed, where one chunk a stage would leave 69 % at most.
_FOLDING = _stack("megatron", interleaves=True)
_EAGER = {"sequence_parallel": False}
_DDP_BUCKET = 25 * 2**20 // 2  # gradients: torch's default of 25 MiB, in BF16
_UNFUSED = {"standard_fusions": False}  # norms, activations and residuals as torch issues them
_PORTABLE = {"portable_attention": True}  # flash-attention 2 or Triton's on every accelerator
# DeepSpeed's engine without ZeRO keeps and reduces gradients in FP16, after the last backward pass. Its Megatron-LM of
# 2022 waits for the backward all-reduce (`megatron/mpu/mappings.py`).
_DEEPSPEED_3D = {
    "fused_attention": False,
    "zero_stage": 0,
    "partitioned_sends": True,
    "overlap_tp_backward": False,
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
    # The playbook's sweep ran on AWS P5. Its layouts with a pipeline were measured again with a later state of the
    # code (huggingface/nanotron@0e0a27e scripts/scaling_benchmarks.py), and only they pay for every collective. With
    # ZeRO there is no DistributedDataParallel to overlap anything (same commit, src/nanotron/trainer.py `make_ddp`).
    Stack(
        "nanotron",
        interconnect="efa",
        defaults=MappingProxyType(
            {"zero_stage": 0, "p2p_handshake": True, "bucket_bytes": 4 * _DDP_BUCKET, **_PORTABLE}
        ),
        pipelined=MappingProxyType({"checked_collectives": True}),
        sharded=MappingProxyType(
            {"overlap_grad_reduce": False, "overlap_param_gather": False, "bucket_bytes": 4 * 200_000_000}
        ),
        memory_statistic="reserved",
        prints_first_rank=True,
        splits_by_cost=True,
        # All but one of the sweep's pipelines on 512 GPUs and all with 32 tensor ranks. So do one in five of the
        # others, where no layout can be told from one that does not.
        stalls_from=(512, 32),
    ),
    # Its MPT computes the loss with the fused kernel of flash-attention (mosaicml/llm-foundry@8c8dd48 ``loss_fn``).
    _stack("llm-foundry", zero_stage=3, cross_entropy_fusion=True, **_UNFUSED, **_PORTABLE),
    # Its operator-wise checkpointing is the default mode, and ``reshard_after_forward`` is off in a pipeline
    # (pytorch/torchtitan@b5bcd76).
    _stack("torchtitan", recomputes="selective:per_op", whole_in_pipeline=True, zero_stage=3, **_UNFUSED, **_PORTABLE),
    # XLA compiles the whole step and, by its models' default, recomputes every layer.
    _stack("maxtext", recomputes="full", zero_stage=3, cuda_graph=Graph.FULL_ITERATION, compiled=True),
    # NVIDIA's performance recipes: virtual stages of one layer, gradients kept and reduced in BF16, FP8 weights
    # without a BF16 original.
    _stack(
        "nemo",
        interleaves=True,
        tp_comm_overlap=True,
        grad_reduce_fp32=False,
        main_grad_bytes=2.0,
        cross_entropy_fusion=True,
        fp8_param_gather=True,
    ),
    # InternEvo keeps BF16 gradients, reduces them under the backward pass and broadcasts parameters after the step
    # (InternLM/InternEvo@c628a8c configs/7B_sft.py: overlap_sync_grad, not overlap_sync_param, buckets of 512 MiB).
    _stack(
        "internevo",
        overlap_param_gather=False,
        broadcast_params=True,
        grad_reduce_fp32=False,
        main_grad_bytes=2.0,
        bucket_bytes=2**29,
        **_EAGER,
    ),
)
_BY_NAME = MappingProxyType({stack.name: stack for stack in _STACKS})
_FRAMEWORKS = MappingProxyType(
    {
        "megatron-bridge": "megatron-bridge",
        "megatron-deepspeed": "megatron-deepspeed",
        "deepspeed": "deepspeed",
        "deepspeed-zero2": "deepspeed",
        "deepspeed-zero3": "deepspeed",
        "colossalai": "deepspeed",
        "nanotron": "nanotron",
        "llm-foundry": "llm-foundry",
        "torchtitan": "torchtitan",
        "maxtext": "maxtext",
        "paxml": "maxtext",
        "internevo": "internevo",
        "vtrain trace": "vtrain-trace",
        "nemo": "nemo",
    }
)


def stack_of(framework: str, version: str = "") -> Stack:
    """The stack of a framework as measurement tables name it, in any case; Megatron-Core's where it is not known."""
    framework = framework.casefold()
    if framework == "megatron-lm" and any(year in version for year in ("2021", "2022")):
        return _BY_NAME["megatron-2022"]
    if framework == "megatron-core" and "2026" in version:  # arXiv 2603.07685 keeps 4 bytes of weight and gradient
        return _BRIDGE
    if framework == "megatron-core" and "2025" in version:
        return _FOLDING
    return _BY_NAME[_FRAMEWORKS.get(framework, MEGATRON.name)]
