"""Accelerators and clusters. Units: bytes, seconds, FLOP/s, dollars."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

GIB = 2.0**30
MAX_GPUS = 200_000  # more than any published training job; larger counts are typing errors


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
        variant: of a better known part; `find_accelerator` finds it under its full name only.
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
    variant: bool = False


@dataclass(frozen=True)
class ClusterSpec:
    """So many accelerators with their links.

    Attributes:
        accelerator: the GPU kind.
        n_gpus: GPUs in the job.
        gpus_per_node: GPUs that share one host.
        interconnect: ``ib`` or ``efa``.
        gpus_per_nic: neighbouring GPUs that share a NIC, which the others reach through the host alone.
    """

    accelerator: Accelerator
    n_gpus: int
    gpus_per_node: int
    interconnect: str = "ib"
    gpus_per_nic: int = 1

    @property
    def name(self) -> str:
        """E.g. ``64xH200-SXM5-141GB``."""
        return f"{self.n_gpus}x{self.accelerator.name}"

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return -(-self.n_gpus // self.gpus_per_node)


def load_yaml(name: str) -> Any:
    """The content of ``simulator/data/<name>``, plain Python values."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(files("simulator").joinpath("data", name).read_text(encoding="utf-8"))


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Every known accelerator by name, read-only; figures and their sources are in ``data/hardware.yaml``."""
    entries = load_yaml("hardware.yaml")
    return MappingProxyType({name: _accelerator(name, entry) for name, entry in entries.items()})


def _accelerator(name: str, entry: Mapping[str, Any]) -> Accelerator:
    price = entry["usd_per_gpu_hour"]
    return Accelerator(
        name=name,
        arch_major=entry["arch_major"],
        peak_bf16_flops=entry["bf16"] * 1e12,
        peak_fp8_flops=entry["fp8"] * 1e12,
        peak_fp4_flops=entry["fp4"] * 1e12,
        memory_bytes=entry["memory_gib"] * GIB,
        memory_bytes_per_s=entry["memory_gb_s"] * 1e9,
        sms=entry["sms"],
        link_bytes_per_s=entry["link_gb_s"] * 1e9,
        domain_gpus=entry["domain_gpus"],
        nic_bytes_per_s=entry["nic_gb_s"] * 1e9,
        host_bytes_per_s=entry["host_gb_s"] * 1e9,
        usd_per_gpu_hour=math.nan if price is None else float(price),
        source=entry["source"],
        variant=entry.get("variant", False),
    )


def parse_cluster(text: str) -> ClusterSpec:
    """The cluster that ``text`` names, e.g. ``64xH200-SXM5-141GB`` or, where one part fits, ``64xh200``.

    A job smaller than a host has all its GPUs on that host.

    Raises:
        ValueError: not ``<count>x<accelerator>``, an unknown or ambiguous accelerator, or a count that is
            zero, absurd or leaves a host partly used.
    """
    match = re.fullmatch(r"\s*([+-]?[0-9]+)\s*[xX]\s*(\S+)\s*", text)
    if match is None:
        raise ValueError(f"cluster {text!r}: write <number of GPUs>x<accelerator>, e.g. 64xH200-SXM5-141GB")
    digits, part = match.groups()
    accelerator = find_accelerator(part)
    # Measured in digits first: int() refuses absurdly long ones with an error of its own.
    n_gpus = int(digits) if len(digits) <= 12 else MAX_GPUS + 1
    if not 1 <= n_gpus <= MAX_GPUS:
        raise ValueError(f"cluster {text!r}: the number of GPUs must be between 1 and {MAX_GPUS:,}")
    node = _host_gpus(accelerator)
    if n_gpus > node and n_gpus % node:
        raise ValueError(
            f"cluster {text!r}: {accelerator.name} has {node} GPUs a host, so more than {node} must be a "
            f"multiple of {node} (nearest: {n_gpus // node * node} or {(n_gpus // node + 1) * node})"
        )
    return cluster_of(accelerator, n_gpus)


def cluster_of(accelerator: Accelerator, n_gpus: int, gpus_per_node: int = 0) -> ClusterSpec:
    """So many of an accelerator, as many a host as usual unless said; hosts may be partly used."""
    node = gpus_per_node or _host_gpus(accelerator)
    return ClusterSpec(accelerator=accelerator, n_gpus=n_gpus, gpus_per_node=min(node, n_gpus))


def find_accelerator(text: str) -> Accelerator:
    """The accelerator whose name is ``text``, or the only one that has all its dash-separated words.

    Case does not matter; the first word must be the name's first (``h100-80gb``, not ``80gb``).

    Raises:
        ValueError: none or several fit.
    """
    known = accelerators()
    wanted = text.lower().split("-")
    fitting = [name for name in known if name.lower() == text.lower()] or [
        name
        for name, part in known.items()
        if name.lower().split("-")[0] == wanted[0] and set(wanted) <= set(name.lower().split("-")) and not part.variant
    ]
    if len(fitting) == 1:
        return known[fitting[0]]
    if fitting:
        raise ValueError(f"accelerator {text!r} is ambiguous: write one of {', '.join(fitting)}")
    raise ValueError(f"accelerator {text!r} is not known: did you mean {nearest(text, known)}?")


def nearest(text: str, names: Mapping[str, Any]) -> str:
    """Up to three of ``names`` that look most like ``text``, joined by commas; all of them if none does."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(text.lower(), by_lower, n=3, cutoff=0.4)
    return ", ".join(by_lower[name] for name in close) or "one of " + ", ".join(names)


def _host_gpus(accelerator: Accelerator) -> int:
    """GPUs of one host: 4 on a tray of an NVL72 rack, otherwise 8."""
    return 4 if accelerator.domain_gpus > 8 else 8
