"""The constants of the physics: one number per effect, each with its source.

What belongs to one accelerator (kernels, collectives) is a table in `simulator.kernel_tables`; the fields here
are either universal or multipliers of those tables, so that a world or a calibration moves plain floats with
`dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from simulator.constants import constant, priors
from simulator.memory_physics import MemoryPhysics

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "AIC": "ai-dynamo/aiconfigurator@095f58a kernel tables (Apache-2.0), constants fitted on them",
        "MLE": "stas00/ml-engineering@744d01e network and accelerator pages",
        "DeepEP": "deepseek-ai/DeepEP@dd758ca docs/legacy.md",
        "MCORE": "arXiv 2603.07685 (Megatron-Core MoE)",
        "SimuMax": "MooreThreads/SimuMax@4dcaae5",
        "vTrain": "VIA-Research/vTrain@f8dda84 data/, measured iteration times",
        "prior": "an engineering estimate without a published measurement",
    }
)
"""Short names of the sources below."""


@dataclass(frozen=True)
class Physics:
    """Time constants. Units: seconds, bytes, ratios."""

    pace: float = constant(
        1.0, 0.0, "whole step over what the constants below give: progress of the software", "fitted"
    )

    # Kernels
    gemm_speed: float = constant(
        0.86, 0.10, "sustained clock and power of a training run over a kernel benchmark", "prior"
    )
    gemm_speed_low: float = constant(
        1.05,
        0.15,
        "further factor of FP8 with one scale a tensor: casts, amax",
        "NVIDIA/dgxc-benchmarking, BF16 against FP8: +38 to +71 %",
    )
    gemm_speed_block: float = constant(
        0.92,
        0.15,
        "the same of block-scaled FP8: casts both ways, scale layout",
        "Megatron-Bridge 25.09-25.11, Llama-3-8B and 405B: MXFP8 4-6 % behind FP8 with one scale a tensor",
    )
    gemm_speed_fp4: float = constant(1.05, 0.20, "the same of FP4: Hadamard transforms, stochastic rounding", "prior")
    ampere_clock: float = constant(
        1.07, 0.08, "the same clocks of Ampere over those of later parts, which meet their power limit", "prior"
    )
    attention_speed: float = constant(0.90, 0.15, "the same clocks, over the table of attention", "prior")
    fp8_attention: float = constant(1.4, 0.20, "speed of FP8 attention over BF16", "prior")
    attention_backward: float = constant(
        0.80, 0.06, "backward over forward efficiency", "MCORE (422/553, 523/638 TFLOP/s)"
    )
    portable_attention: float = constant(
        0.53,
        0.10,
        "from Hopper on, speed of attention written for Ampere over a kernel of the generation",
        "arXiv 2407.08608, flash-attention 2 reaches 35 % of an H100, version 3 up to 75 %",
    )
    memory_eff: float = constant(0.80, 0.20, "of the HBM rate, fused memory-bound operations", "AIC H100")
    ampere_memory: float = constant(
        1.15, 0.15, "that share of Ampere's HBM over later parts', which need more bytes in flight", "prior"
    )
    memory_latency_s: float = constant(3e-6, 0.40, "fixed part of one memory-bound kernel", "AIC H100")
    unfused_traffic: float = constant(2.0, 0.25, "bytes moved without fusion over with it", "prior")
    compiled_traffic: float = constant(0.75, 0.20, "bytes moved under torch.compile over without it", "prior")
    expert_gemm_s: float = constant(
        5e-6,
        0.40,
        "fixed part of each further expert's product in a grouped GEMM",
        "Transformer Engine GroupedLinear: one cuBLAS call an expert over four streams",
    )
    expert_cast_s: float = constant(
        12e-6,
        0.40,
        "the same of its operands' casts and scales where they are narrower than BF16",
        "Transformer Engine GroupedLinear: one quantisation an expert and operand",
    )
    unfused_experts: float = constant(
        1.0, 0.30, "traffic of experts' activations that no kernel fuses, over the bytes counted", "counted"
    )
    scan_flops_per_sm: float = constant(
        0.42e12,
        0.30,
        "rate of the Mamba-2 scan on one SM",
        "the FP32 pipes of an SM reach 0.45 TFLOP/s",
    )
    imbalance_per_doubling: float = constant(
        0.16,
        0.30,
        "slowest expert rank over the mean, per doubling of EP, learned routing",
        "Megatron-MoE-ModelZoo Qwen3-235B, forced against learned balance -20 % at 16K to -8 % at 128K; AIC experts "
        "under power laws of exponent 0.6 to 1.01: 1.32-1.35 at EP 8, 1.52-1.79 at EP 64",
    )

    # Host
    launch_s: float = constant(
        20e-6,
        0.25,
        "issue of one kernel from an eager framework, its Python included",
        "vTrain traces, single A100 nodes: 3.1 ms for a layer forward and backward, half of it the profiler",
    )
    graph_launch_s: float = constant(1e-6, 0.50, "issue of one kernel inside a CUDA graph", "prior")
    sync_s: float = constant(50e-6, 0.50, "host waits for token counts, once per dropless MoE layer and pass", "prior")
    host_tuning: float = constant(  # both together save less than all
        0.06, 0.50, "share of issue time saved by each of manual GC and CPU binding", "prior", below=0.5
    )
    step_fixed_s: float = constant(5e-3, 0.50, "data, logging, norm and scheduler of one step", "prior")

    # Collectives
    link_speed: float = constant(1.0, 0.06, "ring and in-switch rates over the kernel table's", "AIC")
    all_to_all_speed: float = constant(1.0, 0.05, "the same of all-to-all", "AIC")
    nic_eff: float = constant(0.88, 0.10, "of the NIC", "MCORE all-to-all at EP 16-64, 41-45 of 50 GB/s")
    nic_detour: float = constant(
        0.35,
        0.30,
        "rate of a ring whose two ends in a node share no NIC over that of its NICs, where one has to cross the host",
        "prior in view of vTrain on 64 and 256 GPUs; NVIDIA on NCCL 2.12: before PXN such traffic crossed the CPUs at "
        "less than full bandwidth",
    )
    latency: float = constant(1.0, 0.20, "floors of collectives inside a domain over the table's", "AIC")
    hop_latency_s: float = constant(15e-6, 0.50, "further floor for each doubling of nodes", "prior")
    broadcast_hop_s: float = constant(
        10e-6, 0.30, "delay of each rank in a broadcast: a chunk of 512 KiB through its link", "prior, NCCL's slices"
    )
    ring_hop_s: float = constant(6e-6, 0.50, "floor of each hop of a ring between nodes", "prior")
    efa_hop_latency_s: float = constant(
        120e-6, 0.30, "of a tree over EFA", "MLE p6-b200, 379 us for 1 MiB over four nodes"
    )
    efa_ring_hop_s: float = constant(
        450e-6,
        0.30,
        "of each hop of a ring over EFA",
        "Ultra-Scale Playbook on P5 nodes, gathers of TP 16 and 32: 0.9 and 1.9 ms whatever the model",
    )
    check_s: float = constant(
        210e-6,
        0.30,
        "per rank of the group, to compare the arguments of a collective over TCP before it runs",
        "Ultra-Scale Playbook, layouts with a pipeline: 2 ms a layer and rank at TP 4 to 16 whatever the batch",
    )
    handshake_s: float = constant(
        0.3e-3, 0.50, "before a pipeline transfer whose shape is agreed on first", "Ultra-Scale Playbook, PP 8"
    )
    send_stall_s: float = constant(
        0.25,
        0.20,
        "lost by both stages in every pipeline transfer where transfers stall",
        "Ultra-Scale Playbook: half a second a micro-batch and neighbour in 300 of its 800 pipelines, cause unknown",
    )
    ramp: float = constant(1.0, 0.30, "square-root terms of transfers inside a domain over the table's", "AIC")
    network_ramp_s: float = constant(
        19e-6, 0.30, "t0 of T = alpha + S/beta + sqrt(t0 S/beta) between domains", "dgxc H100, fitted"
    )
    tp_overlap_hidden: float = constant(0.70, 0.20, "of TP communication pipelined with its GEMM", "prior", below=1.0)
    tp_backward_hidden: float = constant(
        0.80, 0.20, "of gather and scatter that backward GEMMs can cover", "prior", below=1.0
    )
    ep_overlap_hidden: float = constant(
        0.72,
        0.06,
        "of expert dispatch under another micro-batch",
        "Megatron-Bridge and Megatron-MoE-ModelZoo matched runs, step -24, -15 and -11 % on Qwen3 "
        "(30B all-to-all, 30B HybridEP, 235B DeepEP)",
        below=1.0,
    )
    delay_wgrad_hidden: float = constant(0.04, 0.50, "more of it, with delayed weight gradients", "prior", below=1.0)
    dp_overlap_hidden: float = constant(
        0.90, 0.12, "of gradient and parameter traffic under compute", "prior", below=1.0
    )
    shard_overlap_hidden: float = constant(
        0.80, 0.15, "of the per-layer traffic of sharded parameters and gradients under compute", "prior", below=1.0
    )
    shard_copy_bytes: float = constant(
        14.0,
        0.50,
        "moved per parameter and micro-batch between it and the flat buffers of sharded data parallelism",
        "prior, counted in torch FSDP: gradient cast to FP32 (6) and divided (8)",
    )
    cp_overlap_hidden: float = constant(0.90, 0.20, "of the key/value ring under attention", "prior", below=1.0)
    contention: float = constant(
        0.12,
        0.40,
        "slow-down of compute for each second of hidden communication",
        "prior, Calculon takes 15 % on NVLink and 2 % on NICs, DeepEP 20 of 132 SMs",
    )
    copy_contention: float = constant(
        0.40,
        0.25,
        "the same of communication whose copies run on SMs: all-to-all, DeepEP, tensor parallel",
        "DeepEP, 20-24 of 132 SMs; Megatron-Bridge and Megatron-MoE-ModelZoo matched runs, see ep_overlap_hidden",
    )
    sm_margin_relief: float = constant(0.20, 0.50, "share of the contention that an SM margin avoids", "prior")
    deepep_eff: float = constant(
        0.97, 0.04, "DeepEP over the plain link rate", "DeepEP, 43-58 GB/s RDMA (43 of our 44)"
    )
    hybridep_gain: float = constant(1.03, 0.02, "HybridEP over DeepEP", "MCORE, dispatch table, and DeepEP")

    # Optimizer, offload, scale
    host_link_eff: float = constant(0.80, 0.25, "of the host link", "prior")
    host_adam_bytes_per_s: float = constant(40e9, 0.40, "CPU optimizer traffic per GPU", "prior")
    straggler: float = constant(
        0.008,
        0.50,
        "relative spread of node speeds; the slowest of n sets the pace",
        "prior, NVIDIA/dgxc-benchmarking weak scaling 0.956-1.00 over 4x to 128x GPUs",
    )

    memory: MemoryPhysics = field(default_factory=MemoryPhysics)


SOFTWARE = frozenset(
    {
        "gemm_speed", "attention_speed", "memory_eff", "unfused_traffic", "launch_s", "sync_s", "step_fixed_s",
        "tp_backward_hidden", "dp_overlap_hidden", "cp_overlap_hidden", "nic_eff", "hop_latency_s",
        "shard_overlap_hidden", "shard_copy_bytes",
    }
)  # fmt: skip
"""Constants in which frameworks may differ; the others belong to the hardware or to one framework's feature."""

PRIORS = priors(Physics)
