"""Accelerators and clusters. Units: bytes, seconds, FLOP/s, dollars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """One GPU kind; dense peaks (no sparsity).

    Attributes:
        name: key, e.g. ``H200-SXM5-141GB``.
        arch_major: CUDA compute capability major number (8 Ampere, 9 Hopper, 10 Blackwell; 0 for others).
        peak_bf16_flops, peak_fp8_flops, peak_fp4_flops: FLOP/s; 0 where the format is not supported.
        memory_bytes: what the driver reports as total.
        memory_bytes_per_s: HBM rate.
        sms: streaming multiprocessors.
        link_bytes_per_s: one-way rate of the fast domain (NVLink/xGMI) per GPU.
        domain_gpus: GPUs joined by the fast domain (8, or 72 for NVL72).
        nic_bytes_per_s: one-way network rate per GPU.
        host_bytes_per_s: one-way rate to host memory per GPU.
        usd_per_gpu_hour: default price; nan where none is known.
        source: where the figures come from.
    """

    name: str
    arch_major: int
    peak_bf16_flops: float
    peak_fp8_flops: float
    peak_fp4_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    sms: int
    link_bytes_per_s: float
    domain_gpus: int
    nic_bytes_per_s: float
    host_bytes_per_s: float
    usd_per_gpu_hour: float
    source: str


@dataclass(frozen=True)
class ClusterSpec:
    """So many accelerators with their links.

    Attributes:
        accelerator: the GPU kind.
        n_gpus: GPUs in the job.
        gpus_per_node: GPUs that share one host.
        interconnect: ``ib`` or ``efa``.
    """

    accelerator: Accelerator
    n_gpus: int
    gpus_per_node: int
    interconnect: str = "ib"

    @property
    def name(self) -> str:
        """E.g. ``64xH200-SXM5-141GB``."""
        return f"{self.n_gpus}x{self.accelerator.name}"

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return -(-self.n_gpus // self.gpus_per_node)
