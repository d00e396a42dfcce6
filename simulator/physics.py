"""The constants of the physics: one number per effect, each with its source.

What belongs to one accelerator generation (kernel efficiencies) is a table in `simulator.kernels`; the fields here
are either universal or multipliers of those tables, so that a world or a calibration moves plain floats with
`dataclasses.replace`.

Sources by short name:
    AIC    ai-dynamo/aiconfigurator@095f58a kernel tables (Apache-2.0), constants fitted on them
    MLE    stas00/ml-engineering@744d01e network and accelerator pages
    DeepEP deepseek-ai/DeepEP@dd758ca docs/legacy.md
    MCORE  arXiv 2603.07685 (Megatron-Core MoE)
    SimuMax MooreThreads/SimuMax@4dcaae5
    vTrain VIA-Research/vTrain@f8dda84 data/, measured iteration times
    prior  an engineering estimate without a published measurement; the first thing to calibrate
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.memory_physics import MemoryPhysics


@dataclass(frozen=True)
class Physics:
    """Time constants. Units: seconds, bytes, ratios."""

    # Kernels
    gemm_speed: float = 0.90  # sustained clock and power of a training run over a kernel benchmark. Source: prior
    gemm_speed_low: float = 1.0  # further factor of FP8/FP4: casts of gradients, transposes. Source: prior
    attention_speed: float = 0.90  # the same clocks, over the table of attention. Source: prior
    attention_backward: float = 0.80  # backward over forward efficiency. Source: MCORE (422/553, 523/638 TFLOP/s)
    memory_eff: float = 0.80  # of the HBM rate, fused memory-bound operations. Source: AIC H100
    memory_latency_s: float = 3e-6  # fixed part of one memory-bound kernel. Source: AIC H100
    unfused_traffic: float = 2.0  # bytes moved without fusion over with it. Source: prior
    compiled_traffic: float = 0.75  # bytes moved under torch.compile over without it. Source: prior
    imbalance_per_doubling: float = 0.08  # slowest expert rank over the mean, per doubling of EP, learned
    # routing. Source: Megatron-MoE-ModelZoo Qwen3-235B, forced against learned balance -20 % at 16K

    # Host
    launch_s: float = 20e-6  # issue of one kernel from an eager framework, its Python included. Source: vTrain,
    # single A100 nodes: 3.5 ms for a layer forward, again and backward wherever the GPU needs less
    graph_launch_s: float = 1e-6  # issue of one kernel inside a CUDA graph. Source: prior
    sync_s: float = 50e-6  # host waits for token counts, once per dropless MoE layer and pass. Source: prior
    host_tuning: float = 0.06  # share of issue time saved by each of manual GC and CPU binding. Source: prior
    step_fixed_s: float = 5e-3  # data, logging, norm and scheduler of one step. Source: prior

    # Collectives
    link_speed: float = 1.0  # ring and in-switch rates over the table's. Source: AIC table itself
    all_to_all_speed: float = 1.0  # the same of all-to-all. Source: AIC table itself
    nic_eff: float = 0.88  # of the NIC. Source: MCORE all-to-all at EP 16-64, 41-45 of 50 GB/s
    latency: float = 1.0  # floors of collectives inside a node over the table's. Source: AIC table itself
    hop_latency_s: float = 15e-6  # further floor for each doubling of nodes. Source: prior
    efa_hop_latency_s: float = 120e-6  # the same over EFA. Source: MLE p6-b200, 379 us for 1 MiB over four nodes
    ramp: float = 1.0  # square-root terms over the table's. Source: AIC table itself
    tp_overlap_hidden: float = 0.70  # of TP communication pipelined with its GEMM. Source: prior
    tp_backward_hidden: float = 0.80  # of gather and scatter that backward GEMMs can cover. Source: prior
    ep_overlap_hidden: float = 0.72  # of expert dispatch under another micro-batch. Source: Megatron-Bridge and
    # Megatron-MoE-ModelZoo matched runs, step -24, -15 and -11 % on Qwen3 (30B all-to-all, 30B HybridEP, 235B DeepEP)
    delay_wgrad_hidden: float = 0.04  # more of it, with delayed weight gradients. Source: prior
    dp_overlap_hidden: float = 0.90  # of gradient and parameter traffic under compute. Source: prior
    cp_overlap_hidden: float = 0.90  # of the key/value ring under attention. Source: prior
    contention: float = 0.12  # slow-down of compute for each second of hidden communication. Source: prior,
    # Calculon takes 15 % on NVLink and 2 % on NICs, DeepEP 20 of 132 SMs
    sm_margin_relief: float = 0.20  # share of the contention that an SM margin avoids. Source: prior
    deepep_eff: float = 0.97  # DeepEP over the plain link rate. Source: DeepEP, 43-58 GB/s RDMA (43 of our 44)
    hybridep_eff: float = 1.0  # HybridEP over the plain link rate. Source: MCORE, dispatch table

    # Optimizer, offload, scale
    host_link_eff: float = 0.80  # of the host link. Source: prior
    host_adam_bytes_per_s: float = 40e9  # CPU optimizer traffic per GPU. Source: prior
    straggler: float = 0.008  # relative spread of node speeds; the slowest of n sets the pace. Source: prior,
    # NVIDIA/dgxc-benchmarking weak scaling 0.956-1.00 over 4x to 128x GPUs

    memory: MemoryPhysics = field(default_factory=MemoryPhysics)


DEFAULT_PHYSICS = Physics()

SPREAD: dict[str, float] = {
    "gemm_speed": 0.05,
    "gemm_speed_low": 0.08,
    "attention_speed": 0.08,
    "attention_backward": 0.06,
    "memory_eff": 0.10,
    "memory_latency_s": 0.20,
    "unfused_traffic": 0.15,
    "imbalance_per_doubling": 0.30,
    "launch_s": 0.25,
    "sync_s": 0.30,
    "step_fixed_s": 0.30,
    "link_speed": 0.06,
    "all_to_all_speed": 0.08,
    "nic_eff": 0.10,
    "latency": 0.20,
    "ramp": 0.30,
    "tp_overlap_hidden": 0.10,
    "tp_backward_hidden": 0.10,
    "ep_overlap_hidden": 0.06,
    "dp_overlap_hidden": 0.06,
    "contention": 0.25,
    "deepep_eff": 0.08,
    "hybridep_eff": 0.08,
    "host_link_eff": 0.15,
    "host_adam_bytes_per_s": 0.25,
    "straggler": 0.30,
}
"""Relative standard deviation with which a world draws a field: what stacks and library versions differ by."""
