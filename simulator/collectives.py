"""Seconds of collectives, and what each parallel axis sends.

Ranks are ordered tp-cp-ep-dp-pp, tensor parallel innermost: a group is its size and its stride (distance between
neighbours), and sits inside the fast domain when size x stride does.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.compute import expert_width, routing_imbalance, sharded_tokens
from simulator.hardware import ClusterSpec
from simulator.job import Dispatcher, Ints, Jobs, is_narrow, once, tokens_per_rank
from simulator.kernel_tables import CollectiveFit, Entry, entry, kernel_tables
from simulator.physics import Physics
from simulator.recording import recorded

Floats = NDArray[np.float64]

# HybridEP multicasts in the switch, which nearly reaches the link; the others copy rank by rank. Source: prior.
_MULTICAST_EFF = 0.9


@dataclass(frozen=True)
class Group:
    """Communicators of ``size`` ranks that are ``stride`` apart, shape (B,)."""

    size: Ints
    stride: Ints
    cluster: ClusterSpec

    @cached_property
    def members_per_domain(self) -> Floats:
        """Ranks of one communicator that share a fast domain."""
        domain = self.cluster.accelerator.domain_gpus
        members: Floats = np.minimum(np.maximum(domain // np.maximum(self.stride, 1), 1), self.size).astype(np.float64)
        return members

    @cached_property
    def domains(self) -> Floats:
        """Fast domains that one communicator spans."""
        return np.ceil(self.size / self.members_per_domain)

    @cached_property
    def leaves(self) -> NDArray[np.bool_]:
        """More than one fast domain."""
        return self.domains > 1

    @cached_property
    def passed(self) -> Floats:
        """Share of a buffer that each rank passes on around a ring: (n-1)/n."""
        share: Floats = (self.size - 1) / np.maximum(self.size, 1)
        return share

    @cached_property
    def detours(self) -> NDArray[np.bool_]:
        """Rings enter a node by one member and leave it by another of another NIC, though NICs are shared."""
        shared = self.cluster.gpus_per_nic
        return (shared > 1) & (self.members_per_domain > 1) & (self.stride >= shared)

    @cached_property
    def doublings(self) -> Floats:
        """Times that one fast domain has to double to reach all of them."""
        return np.log2(self.domains)


def nic_rate(cluster: ClusterSpec, physics: Physics) -> float:
    """Bytes per second one GPU reaches over the network, one way."""
    return cluster.accelerator.nic_bytes_per_s * physics.nic_eff


def collective_fit(cluster: ClusterSpec, operation: str) -> CollectiveFit:
    """Constants of ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_reduce_nvls`` or ``all_to_all``.

    Raises:
        ValueError: the operation has no constants.
    """
    return collective_entry(cluster, operation).fit


def collective_entry(cluster: ClusterSpec, operation: str) -> Entry[CollectiveFit]:
    """The same with their provenance."""
    constants = entry(kernel_tables().collective, cluster.accelerator, operation)
    if constants is None:
        raise ValueError(f"{cluster.accelerator.name} has no constants for {operation}: add them to kernels.json")
    return constants


@recorded
def transfer_seconds(sent: Floats, rate: Floats | float, ramp_s: Floats | float) -> Floats:
    """Seconds of ``sent`` bytes beyond the latency: S/beta + sqrt(t0 S/beta).

    **Source:** form fitted on the NCCL tables of ai-dynamo/aiconfigurator@095f58a, 4-8 % over 512 B-512 MiB.
    """
    ideal = sent / rate
    return ideal + np.sqrt(ramp_s * ideal)


def latency_seconds(fit: CollectiveFit, ranks: Floats) -> Floats:
    """Seconds of an empty collective among ``ranks`` of one fast domain."""
    return fit.latency_us * 1e-6 + fit.step_us * 1e-6 * (ranks - 1)


def domain_rate(fit: CollectiveFit, link_bytes_per_s: float, ranks: Floats) -> Floats:
    """Bytes per second each of ``ranks`` sends inside one fast domain, after the ramp."""
    return fit.rate * link_bytes_per_s * (1 - fit.loss / np.maximum(ranks, 2))


def _latency(group: Group, physics: Physics, fit: CollectiveFit) -> Floats:
    """Floor of one collective, 0 for a group of one: a tree doubles its reach with each hop."""
    hop = physics.efa_hop_latency_s if group.cluster.interconnect == "efa" else physics.hop_latency_s
    inside = physics.latency * latency_seconds(fit, group.members_per_domain)
    return np.where(group.size > 1, inside + hop * group.doublings, 0.0)


def ring_rate(group: Group, physics: Physics, fit: CollectiveFit) -> Floats:
    """Bus rate of a ring, bytes per second, shape (B,): the link, or the NICs of all its members in one node.

    **Source:** the slowest hop paces a ring, and NCCL keeps it on one NIC of every node (NCCL_CROSS_NIC).
    """
    inside = physics.link_speed * domain_rate(fit, group.cluster.accelerator.link_bytes_per_s, group.members_per_domain)
    across = group.members_per_domain * nic_rate(group.cluster, physics)
    if group.cluster.gpus_per_nic > 1:
        across = across * np.where(group.detours, physics.nic_detour, 1.0)
    return np.where(group.leaves, np.minimum(inside, across), inside)


def _ring_latency(group: Group, physics: Physics, fit: CollectiveFit) -> Floats:
    """Floor of a gather or scatter, which passes every rank in turn; 0 for a group of one.

    **Source:** NCCL's ring, its only algorithm for these between hosts of several GPUs.
    """
    hop = physics.efa_ring_hop_s if group.cluster.interconnect == "efa" else physics.ring_hop_s
    inside = physics.latency * latency_seconds(fit, group.size - group.domains + 1)
    across = hop * np.where(group.leaves, group.domains, 0.0)
    return np.where(group.size > 1, inside + across, 0.0)


@recorded
def _ring_seconds(group: Group, physics: Physics, whole: Floats, operation: str) -> Floats:
    fit = collective_fit(group.cluster, operation)
    sent = whole * group.passed
    return _ring_latency(group, physics, fit) + _ring_transfer(group, physics, sent, fit)


def _ring_transfer(group: Group, physics: Physics, sent: Floats, fit: CollectiveFit) -> Floats:
    """Seconds of passing ``sent`` bytes on around a ring, beyond the latency."""
    ramp = np.where(group.leaves, physics.network_ramp_s, physics.ramp * fit.ramp_us * 1e-6)
    return transfer_seconds(sent, ring_rate(group, physics, fit), ramp)


@recorded
def gather_seconds(group: Group, physics: Physics, whole: Floats) -> Floats:
    """Seconds of an all-gather (ring) to a buffer of ``whole`` bytes, shape (B,).

    (n-1)/n of it passes each rank; a group of one costs nothing.  **Source:** NCCL's ring, bus-rate convention.
    """
    return _ring_seconds(group, physics, whole, "all_gather")


@recorded
def scatter_seconds(group: Group, physics: Physics, whole: Floats) -> Floats:
    """Seconds of a reduce-scatter (ring) of a buffer of ``whole`` bytes, shape (B,).  **Source:** NCCL's ring."""
    return _ring_seconds(group, physics, whole, "reduce_scatter")


@recorded
def all_reduce_seconds(group: Group, physics: Physics, whole: Floats, nvls: NDArray[np.bool_]) -> Floats:
    """Seconds of an all-reduce of ``whole`` bytes, shape (B,).

    Twice the ring volume; in the switch (NVLS) where allowed, from five ranks of one domain up.
    **Source:** stas00/ml-engineering@744d01e, NCCL chose NVLS from 5 GPUs up on H200.
    """
    chip = group.cluster.accelerator
    ring = _reduce_seconds(group, physics, whole, "all_reduce")
    in_switch = nvls & (group.domains == 1) & (group.size >= 5) & (chip.arch_major >= 9)
    if not in_switch.any():
        return ring
    return np.where(in_switch, _reduce_seconds(group, physics, whole, "all_reduce_nvls"), ring)


@recorded
def _reduce_seconds(group: Group, physics: Physics, whole: Floats, operation: str) -> Floats:
    """Twice the volume of a gather, but the floor of NCCL's trees, which reach all ranks in few hops."""
    fit = collective_fit(group.cluster, operation)
    sent = 2 * whole * group.passed
    return _latency(group, physics, fit) + _ring_transfer(group, physics, sent, fit)


@recorded
def send_seconds(jobs: Jobs, physics: Physics) -> Floats:
    """Seconds of one hidden-state transfer between neighbouring pipeline stages, shape (B,); 0 without pipeline.

    The slowest boundary counts, and one leaves the fast domain unless the whole job fits into it. Inside, a send
    is what each of two ranks does in an all-gather. Without sequence parallelism all tensor-parallel ranks hold the
    same hidden state: with ``partitioned_sends`` each sends its part, and the receivers gather the whole.
    **Source:** arXiv 2104.04473 section 4.1 (scatter/gather).
    """
    whole = 2 * sharded_tokens(jobs) * jobs.model.hidden
    parted = jobs.partitioned_sends & ~jobs.sequence_parallel
    payload = whole / np.where(parted, jobs.tp, 1)
    fit, two = collective_fit(jobs.cluster, "all_gather"), np.asarray(2.0)
    link = physics.link_speed * domain_rate(fit, jobs.cluster.accelerator.link_bytes_per_s, two)
    inside = jobs.cluster.n_gpus <= jobs.cluster.accelerator.domain_gpus
    if inside:
        moving = transfer_seconds(payload, link, physics.ramp * fit.ramp_us * 1e-6)
    else:
        moving = transfer_seconds(payload, nic_rate(jobs.cluster, physics), physics.network_ramp_s)
    moving = moving + np.where(parted, gather_seconds(tensor_group(jobs), physics, whole), 0.0)
    agreeing = physics.handshake_s * jobs.p2p_handshake
    return np.where(jobs.pp > 1, physics.latency * latency_seconds(fit, two) + moving + agreeing, 0.0)


@once
def tensor_group(jobs: Jobs) -> Group:
    """Tensor-parallel communicators: neighbouring ranks."""
    return Group(jobs.tp, np.ones_like(jobs.tp), jobs.cluster)


@once
def data_group(jobs: Jobs) -> Group:
    """Gradients of the dense part: data times context parallel, over one replica of the sharded optimizer."""
    return Group(np.maximum(jobs.dp * jobs.cp // jobs.optimizer_instances, 1), jobs.tp, jobs.cluster)


@once
def expert_data_group(jobs: Jobs) -> Group:
    """Gradients of the experts: expert data parallel, over one replica of the sharded optimizer."""
    size = np.maximum(jobs.expert_dp // jobs.optimizer_instances, 1)
    return Group(size, jobs.etp * jobs.ep, jobs.cluster)


@recorded
def tensor_seconds(jobs: Jobs, physics: Physics) -> tuple[Floats, Floats]:
    """Communication of one tensor-parallel block (attention or MLP): (gather, reduction), shape (B,).

    With sequence parallelism a block gathers its input, in the number format of its GEMMs, and scatters its output
    in BF16; without, it only all-reduces the output. Backward mirrors the forward and gathers the input once more
    for the weight gradients.
    **Source:** arXiv 2205.05198 section 4.2; Transformer Engine `distributed.py`, gathers of quantised tensors.
    """
    group = tensor_group(jobs)
    elements = tokens_per_rank(jobs) * jobs.model.hidden
    gather = gather_seconds(group, physics, np.where(is_narrow(jobs), 1.0, 2.0) * elements)
    scatter = scatter_seconds(group, physics, 2 * elements)
    reduce = all_reduce_seconds(group, physics, 2 * elements, jobs.nvls)
    return np.where(jobs.sequence_parallel, gather, 0.0), np.where(jobs.sequence_parallel, scatter, reduce)


def distinct_targets(targets: Floats, experts: int, top_k: int) -> Floats:
    """Expected number of ``targets`` (nodes or ranks with equal shares of experts) one token's top-k hit, shape (B,).

    targets [1 - C(E - E/targets, k) / C(E, k)].  **Source:** hypergeometric; used by DeepEP-style dispatchers,
    which send a token once per target.
    """
    left, held = experts - np.arange(float(top_k)), experts / np.maximum(targets, 1.0)
    misses = np.maximum(1 - np.multiply.outer(1 / left, held), 0.0).prod(axis=0)
    distinct: Floats = targets * (1 - misses)
    return distinct


@recorded
def dispatch_seconds(jobs: Jobs, physics: Physics) -> Floats:
    """One dispatch (or combine) of one MoE layer and micro-batch, shape (B,); 0 when EP and expert TP are 1.

    All-to-all sends every copy; DeepEP and HybridEP send a token once per distinct rank inside the node and once
    per distinct remote node; all-gather sends every token everywhere. The slower of link and NIC sets the time.
    **Source:** volumes counted; arXiv 2603.07685's H100 dispatch table (EP 8-64, h 7168, top-8 of 256,
    4,096 tokens: all-to-all 1.27-9.16 ms, HybridEP 0.66-4.63 ms) is the check in the tests.
    """
    shape, group = jobs.model, Group(jobs.ep, jobs.etp, jobs.cluster)
    if not shape.experts:
        return np.zeros(jobs.size)
    token = 2.0 * expert_width(shape) * tokens_per_rank(jobs) / jobs.tp
    inside, domains = group.members_per_domain, group.domains
    ranks = distinct_targets(jobs.ep.astype(np.float64), shape.experts, shape.top_k)
    nodes = distinct_targets(domains, shape.experts, shape.top_k)
    skew = routing_imbalance(jobs, physics)
    fused = jobs.dispatcher >= int(Dispatcher.DEEPEP)
    copies = np.where(fused, ranks, float(shape.top_k))
    gathers = jobs.dispatcher == int(Dispatcher.ALLGATHER)
    link_sent = np.where(gathers, token * (jobs.ep - 1), token * skew * copies * (inside - 1) / np.maximum(inside, 1))
    crossing = np.where(fused, nodes, float(shape.top_k)) * (1 - 1 / domains)
    nic_sent = np.where(gathers, token * (jobs.ep - inside) / inside, token * skew * crossing)
    deepep = physics.deepep_eff
    quality = np.array([1.0, 1.0, deepep, deepep * physics.hybridep_gain])[jobs.dispatcher]
    fit = collective_fit(jobs.cluster, "all_to_all")
    ramp = physics.ramp * fit.ramp_us * 1e-6
    link = transfer_seconds(link_sent, quality * _copy_rate(jobs, physics, fit, inside), ramp)
    nic = transfer_seconds(nic_sent, nic_rate(jobs.cluster, physics) * quality, physics.network_ramp_s)
    seconds: Floats = _latency(group, physics, fit) + np.maximum(link, nic)
    if (jobs.etp > 1).any():
        tensor = Group(jobs.etp, np.ones_like(jobs.etp), jobs.cluster)
        seconds = seconds + gather_seconds(tensor, physics, token * shape.top_k * jobs.etp)
    return seconds


def _copy_rate(jobs: Jobs, physics: Physics, all_to_all: CollectiveFit, ranks: Floats) -> Floats:
    """Bytes per second a rank sends to the others of its fast domain, by dispatcher, shape (B,).

    **Source:** NCCL and DeepEP tables of ai-dynamo/aiconfigurator@095f58a, DeepEP with 20 SMs.
    """
    chip = jobs.cluster.accelerator
    sms = entry(kernel_tables().dispatch, chip, "deepep")
    plain = physics.all_to_all_speed * domain_rate(all_to_all, chip.link_bytes_per_s, ranks)
    fused = plain if sms is None else min(sms.fit.gb_s * 1e9, chip.link_bytes_per_s)
    rate = np.where(jobs.dispatcher == int(Dispatcher.DEEPEP), fused, plain)
    return np.where(jobs.dispatcher == int(Dispatcher.HYBRIDEP), _MULTICAST_EFF * chip.link_bytes_per_s, rate)


@recorded
def ring_attention_seconds(jobs: Jobs, physics: Physics) -> Floats:
    """Seconds of the key/value exchange of one attention layer's forward pass over the context-parallel ring, (B,).

    n - 1 steps, each passing a rank's own block on.  **Source:** arXiv 2310.01889 (ring attention).
    """
    shape, group = jobs.model, Group(jobs.cp, jobs.tp, jobs.cluster)
    if shape.attention == "mla":
        width = shape.heads / jobs.tp * (shape.qk_nope_dim + shape.qk_rope_dim + shape.v_dim)
    else:
        width = 2 * np.maximum(shape.kv_heads / jobs.tp, 1.0) * shape.head_dim
    block = 2 * width * tokens_per_rank(jobs)
    fit = collective_fit(jobs.cluster, "all_gather")
    floor = physics.latency * latency_seconds(fit, np.asarray(2.0))
    return (jobs.cp - 1) * (floor + _ring_transfer(group, physics, block, fit))
