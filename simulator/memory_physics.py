"""Constants of memory that no formula gives, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.hardware import GIB


@dataclass(frozen=True)
class MemoryPhysics:
    """Bytes, or shares between 0 and 1 unless said."""

    # CUDA context, cuBLAS and cuDNN workspaces. Source: NVIDIA/Megatron-LM PR 6429, 64 H100 (DeepSeek-V3 cut to
    # 14 layers): device use exceeds what the allocator reserved by 4.0-6.3 GiB, communicators included.
    context_bytes: float = 2.5 * GIB
    # One NCCL communicator. Source: ai-dynamo/aiconfigurator@095f58a systems/h100_sxm.yaml, 392 MiB at 4-8 GPUs.
    communicator_bytes: float = 0.383 * GIB
    # NVLink SHARP buffers of one process. Why: NCCL registers multicast buffers besides its ring buffers.
    nvls_bytes: float = 0.5 * GIB
    # DeepEP and HybridEP communication buffers. Source: deepseek-ai/DeepEP@dd758ca README, about 1 GiB in examples.
    dispatcher_bytes: float = 1.0 * GIB
    # Reserved but unallocated over allocated. Source: SimuMax@4dcaae5 divides by 0.94; the reserved and allocated
    # memory of its own runs (docs/b200/b200_release_v1.2_summary.md) differ by 2.8-7.9 %.
    reserve: float = 0.06
    # The same with expandable segments. Why: unused segments are remapped instead of lying idle.
    reserve_expandable: float = 0.02
    # Added where tensor sizes change from step to step. Why: dropless routing leaves holes no later tensor fits.
    reserve_dropless: float = 0.03
    # Added where expert communication on side streams holds tensors back. Source: NVIDIA/Megatron-LM PR 6429, 64 H100
    # (DeepSeek-V3 cut to 14 layers, full recompute): 4 % over allocated without the overlap, 13 % with it.
    reserve_record_streams: float = 0.06
    # Fullest rank's tokens over the mean with learned routing. Source: mlc-ai/pith-train PR 18, DualPipeV estimator.
    routing_imbalance: float = 1.2
    # Share of the experts' outputs kept for the backward pass: 0 where the router's probabilities weigh the
    # activation inside the expert (Megatron-Core 0.12 and later), 1 where they weigh its output.
    expert_output_kept: float = 0.0
    # Bytes per logit alive at the peak: BF16 logits, FP32 copy and FP32 softmax; fused: BF16 logits and gradient.
    logit_bytes: float = 10.0
    logit_bytes_fused: float = 4.0
    # Bytes per logit of an MTP layer that wait for the backward pass: FP32 softmax; fused: the BF16 gradient.
    logit_kept_bytes: float = 4.0
    logit_kept_bytes_fused: float = 2.0
    # Static input and output of one captured layer, in hidden states. Source: Megatron-Core 0.14
    # transformer/cuda_graphs.py copies both into buffers of its own.
    graph_hidden_states: float = 2.0


DEFAULT_MEMORY_PHYSICS = MemoryPhysics()
