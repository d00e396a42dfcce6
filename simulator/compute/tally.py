"""What one part of a model costs: its kernels added up, and the tokens and layers they work on.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.job import (
    Bools,
    Graph,
    Jobs,
    Recompute,
    has,
    hidden_shards,
    is_narrow,
    most_layers,
    once,
    tokens_per_rank,
)
from simulator.kernels import GemmRates, gemm_seconds, memory_seconds, weight_gradient_seconds
from simulator.physics import Physics
from simulator.recording import recorded

Floats = NDArray[np.float64]

# Kernel counts of an eager Megatron-Core layer and their ratios. Source: prior, counted in its modules.
_BACKWARD_TRAFFIC = 1.5  # memory-bound backward over forward: the saved input is read as well
_BACKWARD_KERNELS = 1.6  # kernels of a backward pass over its forward pass
_LOW_PRECISION_KERNELS = 1.3  # casts and scale updates
_UNFUSED_KERNELS = 1.5
_COMPILED_KERNELS = 0.6
_TRACED_LAUNCH = 2.0  # a launch under a profiler over one without. Source: vTrain's traces, single A100 nodes
_COLLECTIVE_LAUNCHES = 3.0  # one collective with its copies and stream waits


@dataclass(frozen=True)
class PartTime:
    """One part of the model, one micro-batch, one rank. Shapes (B,), seconds unless said.

    Attributes:
        forward, backward: GPU time without communication and without recomputation.
        wgrad: the weight gradients inside ``backward``.
        replay: forward work repeated in the backward pass by activation recomputation.
        issue: what the host needs to launch the forward pass; backward takes ``_BACKWARD_KERNELS`` times that.
        sync: time the GPU idles while the host waits for it, per pass.
        gemm: time inside matrix products;  gemm_ideal: the same at the accelerator's peak.
        weights, expert_weights: parameters of the matrices on the rank (not shared, sharded over experts).
        cover: forward seconds that may run beside the part's own communication: the attention kernel beside the
            key/value ring, the shared experts beside the dispatch.
    """

    forward: Floats
    backward: Floats
    wgrad: Floats
    replay: Floats
    issue: Floats
    sync: Floats
    gemm: Floats
    gemm_ideal: Floats
    weights: Floats
    expert_weights: Floats
    cover: Floats

    @property
    def issue_backward(self) -> Floats:
        """Host time to launch the backward pass."""
        return _BACKWARD_KERNELS * self.issue


@once
def nothing(jobs: Jobs) -> Floats:
    """What a part does not have, shape (B,). One array for each batch: where it ``is`` found, work can be left out."""
    return np.zeros(jobs.size)


@once
def sharded_tokens(jobs: Jobs) -> Floats:
    """Tokens of one micro-batch a rank holds outside the tensor-parallel GEMMs, shape (B,); see `hidden_shards`."""
    return tokens_per_rank(jobs) / hidden_shards(jobs)


def tensor_launches(jobs: Jobs) -> Floats:
    """Launches for the collectives of one tensor-parallel block, forward, shape (B,).

    A gather and a scatter with sequence parallelism, else one all-reduce; none in a trace of one rank.
    """
    collectives = np.where(jobs.sequence_parallel, 2.0, 1.0) * ((jobs.tp > 1) & ~jobs.traced)
    return _COLLECTIVE_LAUNCHES * collectives


@once
def recomputed_share(jobs: Jobs) -> Floats:
    """Share of layers under full recomputation, shape (B,): ``recompute_layers`` per virtual stage, 0 for all."""
    per_stage = np.maximum(most_layers(jobs) / jobs.vpp, 1.0)
    share = np.where(jobs.recompute_layers > 0, np.minimum(jobs.recompute_layers / per_stage, 1.0), 1.0)
    return np.where(has(jobs.recompute, Recompute.FULL), share, 0.0)


@once
def launch_seconds(jobs: Jobs, physics: Physics) -> tuple[Floats, Floats]:
    """Host time for each kernel counted in an eager BF16 layer, shape (B,): launched alone, and inside a CUDA graph."""
    factor = np.where(is_narrow(jobs), _LOW_PRECISION_KERNELS, 1.0)
    factor = factor * np.where(jobs.standard_fusions, 1.0, _UNFUSED_KERNELS)
    factor = factor * np.where(jobs.compiled, _COMPILED_KERNELS, 1.0)
    factor = factor * np.where(jobs.traced, _TRACED_LAUNCH, 1.0)
    factor = factor * (1 - physics.host_tuning * jobs.host_tuned)
    graph = factor * physics.graph_launch_s
    return np.where(has(jobs.cuda_graph, Graph.FULL_ITERATION), graph, factor * physics.launch_s), graph


@once
def fused_traffic(jobs: Jobs, physics: Physics) -> Floats:
    """Bytes that memory-bound operations move over those of Megatron-Core's fused kernels, shape (B,)."""
    traffic = np.where(jobs.standard_fusions, 1.0, physics.unfused_traffic)
    return np.where(jobs.compiled, physics.compiled_traffic, traffic)


class Tally:
    """Adds up the kernels of one part."""

    def __init__(self, jobs: Jobs, physics: Physics) -> None:
        self.jobs, self.physics = jobs, physics
        self.full = recomputed_share(jobs)
        self.sums = dict.fromkeys(PartTime.__annotations__, nothing(jobs))
        self.fusion = fused_traffic(jobs, physics)

    def grow(self, **seconds: Floats) -> None:
        """Adds to the sums of these names."""
        for name, more in seconds.items():
            self.sums[name] = self.sums[name] + more

    @recorded
    def _add(self, forward: Floats, backward: Floats, replayed: Bools | bool) -> tuple[Floats, Floats, Floats]:
        """Adds kernels; returns what forward, backward and replay grew by."""
        self.grow(forward=forward, backward=backward)
        if replayed is False and self.full is nothing(self.jobs):
            return forward, backward, self.full
        replay = forward * (self.full if replayed is False else np.where(replayed, 1.0, self.full))
        self.grow(replay=replay)
        return forward, backward, replay

    @recorded
    def gemm(
        self, rates: GemmRates, rows: Floats, n: Floats, k: Floats,
        *, groups: Floats | float = 1.0, expert: GemmRates | None = None, replayed: Bools | bool = False,
    ) -> None:  # fmt: skip
        """A linear layer: forward, data gradient and weight gradient.

        Experts have rates of their own for products with few rows each; their weight gradients are plain products.
        """
        product = expert or rates
        forward = gemm_seconds(product, rows, n, k, groups=groups)
        wgrad = weight_gradient_seconds(rates, rows, n, k, groups=groups) * ~self.jobs.frozen
        backward = gemm_seconds(product, rows, k, n, groups=groups) + wgrad
        self._add(forward, backward, replayed)
        self.grow(wgrad=wgrad, gemm=forward + backward, gemm_ideal=6 * rows * n * k / rates.peak_flops)
        self.grow(**{"expert_weights" if expert else "weights": groups * n * k})

    @recorded
    def memory(
        self, traffic: Floats, *, kernels: Floats | float = 1.0, fused: bool = True,
        backward: float = _BACKWARD_TRAFFIC, replayed: Bools | bool = False,
    ) -> None:  # fmt: skip
        """Memory-bound operations; ``fused`` ones move more bytes when the stack's fusions are off.

        ``backward``: what the backward pass moves over the forward pass.
        """
        moved = traffic * self.fusion if fused else traffic
        forward = memory_seconds(self.jobs, self.physics, moved, kernels=kernels)
        self._add(forward, forward * backward, replayed)

    @recorded
    def products(self, forward: Floats, backward: Floats, *, replayed: Bools | bool = False) -> None:
        """Matrix products without weights."""
        self._add(forward, backward, replayed)

    @recorded
    def attention(self, forward: Floats, *, replayed: Bools | bool = False) -> None:
        """The fused attention kernel; its backward computes the scores again, 2.5 times the FLOPs instead of 2.

        **Source:** arXiv 2307.08691 (FlashAttention-2), section 3.1.2.
        """
        self._add(forward, forward * (2.5 / self.physics.attention_backward), replayed)
        self.grow(cover=forward)

    @recorded
    def scan(self, flops: Floats) -> None:
        """Chunked state-space scan: its products run on each SM's own pipes; backward repeats the forward.

        **Source:** state-spaces/mamba ``ops/triton/ssd_combined.py``, whose backward recomputes the states.
        """
        forward = flops / (self.physics.scan_flops_per_sm * self.jobs.cluster.accelerator.sms)
        self._add(forward, 3.0 * forward, False)

    def launches(self, kernels: Floats | float, captured: Bools | bool) -> None:
        """Host time of so many forward kernels, nearly free where a CUDA graph holds them."""
        eager, graph = launch_seconds(self.jobs, self.physics)
        self.grow(issue=kernels * np.where(captured, graph, eager))

    def done(self) -> PartTime:
        return PartTime(**self.sums)
