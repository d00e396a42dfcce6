"""Constants of memory that no formula gives, each with its source and how far it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from simulator.constants import constant, priors
from simulator.hardware import GIB


@dataclass(frozen=True)
class MemoryPhysics:
    """Bytes, or shares between 0 and 1 unless said; the values are those of Megatron-Core with Transformer Engine."""

    # Outside the allocator
    context_bytes: float = constant(
        2.5 * GIB,
        0.2,
        "CUDA context, cuBLAS and cuDNN workspaces",
        "NVIDIA/Megatron-LM PR 6429, 64 H100: device use exceeds the reserved memory by 4.0-6.3 GiB, communicators "
        "included",
    )
    communicator_bytes: float = constant(
        0.383 * GIB,
        0.3,
        "one NCCL communicator",
        "ai-dynamo/aiconfigurator@095f58a systems/h100_sxm.yaml, 392 MiB at 4-8 GPUs",
    )
    nvls_bytes: float = constant(
        0.5 * GIB, 0.3, "NVLink SHARP buffers of one process, beside NCCL's ring buffers", "prior"
    )
    dispatcher_bytes: float = constant(
        1.0 * GIB, 0.3, "DeepEP or HybridEP buffers", "deepseek-ai/DeepEP@dd758ca README, about 1 GiB in examples"
    )

    # The allocator: reserved but unallocated over allocated
    reserve: float = constant(
        0.06,
        0.3,
        "segments that no tensor fills",
        "SimuMax@4dcaae5 divides by 0.94; reserved and allocated memory of its own runs "
        "(docs/b200/b200_release_v1.2_summary.md) differ by 2.8-7.9 %",
    )
    reclaimed: float = constant(
        0.75,
        0.1,
        "share of these segments that the allocator returns and uses otherwise where memory ends",
        "fitted: of 2,200 published runs (without the nanotron sweep) fewest look out of memory, stated failures do",
        below=1.0,
    )
    reserve_expandable: float = constant(
        0.02, 0.5, "the same with expandable segments, which are remapped instead of lying idle", "prior"
    )
    reserve_dropless: float = constant(
        0.03, 0.5, "added where dropless routing changes tensor sizes from step to step", "prior"
    )
    reserve_record_streams: float = constant(
        0.06,
        0.5,
        "added where expert communication on side streams holds tensors back",
        "NVIDIA/Megatron-LM PR 6429, 64 H100, full recompute: 4 % over allocated without the overlap, 13 % with it",
    )

    # Experts
    routing_imbalance: float = constant(
        1.2, 0.1, "fullest rank's tokens over the mean, learned routing", "mlc-ai/pith-train PR 18, DualPipeV estimator"
    )
    expert_output_kept: float = constant(
        0.0,
        0.0,
        "share of the experts' outputs kept for the backward pass: 0 where the router's probabilities weigh the "
        "activation inside the expert, 1 where they weigh its output",
        "Megatron-Core 0.12 and later",
    )

    # Logits, bytes each
    logit_bytes: float = constant(10.0, 0.1, "alive at the peak: BF16, FP32 copy and FP32 softmax", "arithmetic")
    logit_bytes_fused: float = constant(4.0, 0.1, "the same, fused: BF16 and its gradient", "arithmetic")
    logit_kept_bytes: float = constant(4.0, 0.0, "of an MTP layer until the backward pass: FP32 softmax", "arithmetic")
    logit_kept_bytes_fused: float = constant(2.0, 0.0, "the same, fused: the BF16 gradient", "arithmetic")
    logit_stale_bytes: float = constant(
        0.0, 0.0, "of the micro-batch before, still held while the next one runs", "Megatron-Core frees them"
    )

    # What frameworks without fused modules keep besides
    attention_copies: float = constant(
        0.0,
        0.0,
        "copies of q, k and v kept where positions and layout change out of place",
        "none with Transformer Engine",
    )
    activation_inputs: float = constant(
        0.0, 0.0, "share of the gate's activation kept beside its input and the product", "0: one fused kernel"
    )
    wide_inputs: float = constant(
        0.0, 0.0, "1 where FP8 GEMMs keep their BF16 input for the backward pass", "0: Transformer Engine quantises it"
    )
    raw_gradient_bytes: float = constant(
        0.0, 0.0, "per parameter, of gradients in the weights' format beside the gradient buffer", "0: added in place"
    )
    sharded_weight_bytes: float = constant(
        2.0, 0.0, "of a weight where ZeRO-3 shards it, its FP32 copy apart", "BF16 beside FP32 main weights"
    )
    placeholder_gradients: float = constant(
        1.0, 0.0, "share of the weight shapes with a placeholder gradient", "Transformer Engine 2.x module/base.py"
    )
    gathers_ahead_ranks: float = constant(
        16.0,
        0.0,
        "tensor-parallel ranks up to which a pipeline shows this",
        "vinjn/nanotron-ultrascale-playbook@924e4d0b, why is not known",
    )
    gathers_ahead: float = constant(
        0.0,
        0.0,
        "layers by which the host may run ahead of the GPU, whose gathered inputs the communication stream still holds",
        "0: Megatron-Core gathers into one global buffer",
    )


_TORCH: Mapping[str, float] = MappingProxyType(
    {"sharded_weight_bytes": 0.0, "placeholder_gradients": 0.0, "context_bytes": 0.8 * GIB, "reserve": 0.03}
)
"""PyTorch's FSDP shards FP32 weights and casts what it gathers; there is no Transformer Engine."""
_STACKS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        # huggingface/nanotron@03b83fc models/llama.py and @069c21c optim/gradient_accumulator.py; logits, gathers and
        # reserve fitted to the peaks of vinjn/nanotron-ultrascale-playbook@924e4d0b
        "nanotron": {
            "attention_copies": 1.0,  # rotation out of place, keys and values concatenated
            "activation_inputs": 1.0,  # silu(gate) * up as two operations
            "raw_gradient_bytes": 2.0,  # BF16 gradients of the whole backward pass are added up after it
            "placeholder_gradients": 0.0,
            "logit_bytes": 5.5,
            "logit_stale_bytes": 4.0,  # the FP32 logits of the micro-batch before
            "gathers_ahead": 25.0,  # a launch queue of 1,024 kernels holds about so many layers
            "reserve": 0.03,
            "context_bytes": 0.8 * GIB,  # no Transformer Engine; runs with 77.1 of 79.1 GiB reserved survive
        },
        "deepspeed": {"raw_gradient_bytes": 2.0, "placeholder_gradients": 0.0, "context_bytes": 0.8 * GIB},
        "llm-foundry": _TORCH,
        "torchtitan": {
            **_TORCH,
            "logit_bytes": 14.0,  # BF16, FP32 log-softmax, and both gradients in FP32
            "wide_inputs": 1.0,  # pytorch/ao float8/float8_linear.py, prototype/mx_formats/mx_linear.py: input_hp
        },
    }
)
"""What a stack does otherwise than Megatron-Core, by constant."""


def memory_physics_of(stack: str) -> MemoryPhysics:
    """The constants of a stack (`simulator.stacks`); Megatron-Core's for one that has none of its own."""
    return replace(MemoryPhysics(), **_STACKS.get(stack, {}))


DEFAULT_MEMORY_PHYSICS = MemoryPhysics()

MEMORY_PRIORS = priors(MemoryPhysics)

MEMORY_SPREAD: Mapping[str, float] = MappingProxyType(
    {name: prior.sd for name, prior in MEMORY_PRIORS.items() if prior.sd > 0}
)
"""Relative standard deviation with which a world draws a field."""


def drawn_memory_physics(random: np.random.Generator, scale: float) -> MemoryPhysics:
    """Constants as another cluster and library versions may have them; ``scale`` multiplies every deviation."""
    deviations = scale * np.clip(random.normal(size=len(MEMORY_SPREAD)), -3, 3)
    drawn = {name: MEMORY_PRIORS[name].moved(by) for name, by in zip(MEMORY_SPREAD, deviations.tolist(), strict=True)}
    return replace(MemoryPhysics(), **drawn)
