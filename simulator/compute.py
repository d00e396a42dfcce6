"""Seconds of computation of each part of a model, for one micro-batch on one rank.

A transformer is counted in parts: ``attention``, ``mamba``, ``mlp`` and ``moe`` occur once or never in a layer,
``embedding`` on the first pipeline stage, ``head`` and ``mtp`` (the joining projection) on the last. A stage's time
is the sum over parts of how many it holds times what one costs.

Shape letters:  B = jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.job import Bools, Graph, Jobs, Precision, Recompute, has, hidden_shards, tokens_per_rank
from simulator.kernels import (
    AttentionShape,
    GemmRates,
    attention_fit,
    attention_seconds,
    gemm_rates,
    gemm_seconds,
    memory_seconds,
    weight_gradient_seconds,
)
from simulator.models import ModelShape, layer_flops, layer_kinds
from simulator.physics import Physics

Floats = NDArray[np.float64]

# Kernel counts of an eager Megatron-Core layer and their ratios. Source: prior, counted in its modules.
_BACKWARD_TRAFFIC = 1.5  # memory-bound backward over forward: the saved input is read as well
_BACKWARD_KERNELS = 1.6  # kernels of a backward pass over its forward pass
_LOW_PRECISION_KERNELS = 1.3  # casts and scale updates
_UNFUSED_KERNELS = 1.5
_COMPILED_KERNELS = 0.6
_SCORE_KERNELS = 8.0  # transposes, two batched products, mask, softmax and dropout in place of one fused kernel
_TENSOR_LAUNCHES = 6.0  # two collectives of a tensor-parallel block, with their copies and stream waits


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


def sharded_tokens(jobs: Jobs) -> Floats:
    """Tokens of one micro-batch a rank holds outside the tensor-parallel GEMMs, shape (B,); see `hidden_shards`."""
    return tokens_per_rank(jobs) / hidden_shards(jobs)


def routing_imbalance(jobs: Jobs, physics: Physics) -> Floats:
    """Load of the busiest expert rank over the mean, shape (B,); 1 when balance is forced or EP is 1.

    Expert capacity bounds it. **Source:** Qwen3-235B, forced against learned balance (Megatron-MoE-ModelZoo).
    """
    learned = 1 + physics.imbalance_per_doubling * np.log2(jobs.ep)
    capped = np.where(jobs.capacity_factor > 0, np.maximum(jobs.capacity_factor, 1.0), np.inf)
    return np.where(jobs.force_balance, 1.0, np.minimum(learned, capped))


def expert_copies(jobs: Jobs) -> Floats:
    """Routed token copies one rank computes for one micro-batch under even routing, shape (B,)."""
    return tokens_per_rank(jobs) / jobs.tp * jobs.model.top_k * jobs.etp


def tokens_per_expert(jobs: Jobs) -> Floats:
    """Rows of one expert's GEMM for one micro-batch under even routing, shape (B,); 0 without experts."""
    if not jobs.model.experts:
        return np.zeros(jobs.size)
    return expert_copies(jobs) * jobs.ep / jobs.model.experts


def expert_width(shape: ModelShape) -> int:
    """Width (elements) at which tokens travel to and through the experts: the hidden size or a latent one."""
    return shape.moe_latent or shape.hidden


def recomputed_share(jobs: Jobs) -> Floats:
    """Share of layers under full recomputation, shape (B,): ``recompute_layers`` per virtual stage, 0 for all."""
    per_stage = np.maximum(jobs.stage_layers.max(axis=1) / jobs.vpp, 1.0)
    share = np.where(jobs.recompute_layers > 0, np.minimum(jobs.recompute_layers / per_stage, 1.0), 1.0)
    return np.where(has(jobs.recompute, Recompute.FULL), share, 0.0)


class _Tally:
    """Adds up the kernels of one part."""

    def __init__(self, jobs: Jobs, physics: Physics) -> None:
        self.jobs, self.physics = jobs, physics
        self.full = recomputed_share(jobs)
        self.sums = {name: np.zeros(jobs.size) for name in PartTime.__annotations__}
        traffic = np.where(jobs.standard_fusions, 1.0, physics.unfused_traffic)
        self.fusion = np.where(jobs.compiled, physics.compiled_traffic, traffic)

    def _add(self, forward: Floats, backward: Floats, replayed: Bools | bool) -> None:
        self.sums["forward"] += forward
        self.sums["backward"] += backward
        self.sums["replay"] += forward * np.where(replayed, 1.0, self.full)

    def gemm(
        self, rates: GemmRates, rows: Floats, n: Floats, k: Floats,
        *, groups: Floats | float = 1.0, expert: GemmRates | None = None, replayed: Bools | bool = False,
    ) -> None:  # fmt: skip
        """A linear layer: forward, data gradient and weight gradient; of experts, at the rates of ``expert``."""
        product = expert or rates
        forward = gemm_seconds(product, rows, n, k, groups=groups)
        wgrad = weight_gradient_seconds(rates, rows, n, k, groups=groups)
        backward = gemm_seconds(product, rows, k, n, groups=groups) + wgrad
        self._add(forward, backward, replayed)
        self.sums["wgrad"] += wgrad
        self.sums["gemm"] += forward + backward
        self.sums["gemm_ideal"] += 6 * rows * n * k / rates.peak_flops
        self.sums["expert_weights" if expert is not None else "weights"] += groups * n * k

    def memory(
        self, traffic: Floats, *, kernels: float = 1.0, fused: bool = True, replayed: Bools | bool = False
    ) -> None:
        """Memory-bound operations; ``fused`` ones move more bytes when the stack's fusions are off."""
        moved = traffic * self.fusion if fused else traffic
        forward = memory_seconds(self.jobs, self.physics, moved, kernels=kernels)
        self._add(forward, forward * _BACKWARD_TRAFFIC, replayed)

    def attention(self, forward: Floats, *, replayed: Bools | bool = False) -> None:
        """Attention's matrix products; a fused backward computes the scores again, 2.5 times the FLOPs instead of 2.

        **Source:** arXiv 2307.08691 (FlashAttention-2), section 3.1.2.
        """
        fused = 2.5 / self.physics.attention_backward
        self._add(forward, forward * np.where(self.jobs.fused_attention, fused, 2.0), replayed)
        self.sums["cover"] += forward

    def launches(self, kernels: Floats | float, captured: Bools | bool) -> None:
        """Host time of so many forward kernels, nearly free where a CUDA graph holds them."""
        jobs, physics = self.jobs, self.physics
        low = ~np.isin(jobs.precision, (Precision.BF16, Precision.FP16))
        count = kernels * np.where(low, _LOW_PRECISION_KERNELS, 1.0)
        count = count * np.where(jobs.standard_fusions, 1.0, _UNFUSED_KERNELS)
        count = count * np.where(jobs.compiled, _COMPILED_KERNELS, 1.0)
        whole = has(jobs.cuda_graph, Graph.FULL_ITERATION)
        each = np.where(whole | captured, physics.graph_launch_s, physics.launch_s)
        self.sums["issue"] += count * each * (1 - physics.host_tuning * jobs.host_tuned)

    def done(self) -> PartTime:
        return PartTime(**self.sums)


def part_times(jobs: Jobs, physics: Physics) -> dict[str, PartTime]:
    """Seconds of each part the model has, keyed by part name; every field has shape (B,).

    Raises:
        ValueError: a job's number format is not supported by its accelerator.
    """
    shape = jobs.model
    rates = gemm_rates(jobs, physics)
    plain = gemm_rates(jobs, physics, high_precision=True)
    counts = layer_mix(shape)
    parts = {"embedding": _embedding(jobs, physics), "head": _head(jobs, physics, plain)}
    if counts["attention"]:
        parts["attention"] = _attention(jobs, physics, rates)
    if counts["mamba"]:
        parts["mamba"] = _mamba(jobs, physics, rates)
    if counts["mlp"] or shape.first_dense_layers or not shape.experts:
        parts["mlp"] = _mlp(jobs, physics, rates)
    if shape.experts:
        parts["moe"] = _moe(jobs, physics, rates, plain)
    if shape.mtp_layers:
        parts["mtp"] = _mtp(jobs, physics, rates)
    return parts


def layer_mix(shape: ModelShape) -> dict[str, float]:
    """How many of each part an average decoder layer has, as shares of 1; leading dense layers count as experts here.

    A plain transformer layer holds attention and one MLP; a layer of a hybrid is one mixer.
    """
    kinds = layer_kinds(shape)
    leading = 0 if shape.hybrid or not shape.experts else kinds.dense
    held = {
        "attention": kinds.attention,
        "mamba": kinds.mamba,
        "mlp": kinds.dense - leading,
        "moe": kinds.moe + leading,
    }
    return {part: count / shape.layers for part, count in held.items()}


def _attention(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    shape, tally = jobs.model, _Tally(jobs, physics)
    rows, local = tokens_per_rank(jobs), sharded_tokens(jobs)
    h, heads = float(shape.hidden), shape.heads / jobs.tp
    tally.memory(8 * h * local, kernels=2, replayed=has(jobs.recompute, Recompute.LAYERNORM))
    if shape.attention == "mla":
        qk, v = shape.qk_nope_dim + shape.qk_rope_dim, shape.v_dim
        up = has(jobs.recompute, Recompute.MLA_UP_PROJ)
        query_in = float(shape.q_lora_rank or shape.hidden)
        if shape.q_lora_rank:
            tally.gemm(rates, local, np.asarray(query_in), np.asarray(h))
        tally.gemm(rates, local, np.asarray(float(shape.kv_lora_rank + shape.qk_rope_dim)), np.asarray(h))
        tally.gemm(rates, rows, heads * qk, np.asarray(query_in), replayed=up)
        kv_width = heads * (shape.qk_nope_dim + v)
        tally.gemm(rates, rows, kv_width, np.asarray(float(shape.kv_lora_rank)), replayed=up)
        tally.memory(8 * heads * qk * rows, kernels=3, replayed=up)
    else:
        qk = v = shape.head_dim
        kv_heads = np.maximum(shape.kv_heads / jobs.tp, 1)
        tally.gemm(rates, rows, (heads + 2 * kv_heads) * qk, np.asarray(h))
        norms = 1 if shape.qk_norm == "none" else 2
        tally.memory(4 * norms * (heads + kv_heads) * qk * rows, kernels=2 * norms)
    _attention_kernel(tally, rows, heads, float(qk), float(v))
    tally.gemm(rates, rows, np.asarray(h), heads * v)
    kernels = 14.0 + np.where(jobs.tp > 1, _TENSOR_LAUNCHES, 0.0) + np.where(jobs.fused_attention, 0.0, _SCORE_KERNELS)
    tally.launches(kernels, has(jobs.cuda_graph, Graph.ATTN))
    return tally.done()


def _attention_kernel(tally: _Tally, rows: Floats, heads: Floats, qk: float, v: float) -> None:
    """Scores and weighted sum, causal half; without a fused kernel the score matrix travels through memory."""
    jobs, shape = tally.jobs, tally.jobs.model
    replayed = has(jobs.recompute, Recompute.CORE_ATTN)
    seq = jobs.seq_len.astype(np.float64)
    flops = rows / jobs.tp * layer_flops(shape, seq)["core_attention"]
    kind = "mla" if shape.attention == "mla" else "gqa"
    kv_heads = heads if kind == "mla" else np.maximum(shape.kv_heads / jobs.tp, 1)
    seen = AttentionShape(
        flops * np.where(jobs.fused_attention, 1.0, 2.0), rows, jobs.cp, heads, kv_heads, qk, v,
    )  # fmt: skip
    chip = jobs.cluster.accelerator
    forward = attention_seconds(attention_fit(chip, kind), chip, seen, tally.physics.attention_speed)
    tally.attention(forward, replayed=replayed)
    scores = np.where(jobs.fused_attention, 0.0, 8.0 * rows * heads * seq)
    tally.memory(scores, kernels=0, fused=False, replayed=replayed)


def _mlp(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    shape, tally = jobs.model, _Tally(jobs, physics)
    replayed = has(jobs.recompute, Recompute.MLP)
    norm = replayed | has(jobs.recompute, Recompute.LAYERNORM)
    tally.memory(8.0 * shape.hidden * sharded_tokens(jobs), kernels=2, replayed=norm)
    _dense_mlp(tally, rates, shape.ffn, replayed)
    tally.launches(8.0 + np.where(jobs.tp > 1, _TENSOR_LAUNCHES, 0.0), has(jobs.cuda_graph, Graph.MLP))
    return tally.done()


def _dense_mlp(tally: _Tally, rates: GemmRates, width: int, replayed: Bools) -> None:
    """Both linear layers and the activation of an MLP of this width, split over TP."""
    jobs, shape = tally.jobs, tally.jobs.model
    rows, h, ffn = tokens_per_rank(jobs), np.asarray(float(shape.hidden)), width / jobs.tp
    fan = 2 if shape.gated_mlp else 1
    tally.gemm(rates, rows, fan * ffn, h, replayed=replayed)
    tally.memory(2 * (fan + 1) * ffn * rows, replayed=replayed)
    tally.gemm(rates, rows, h, ffn, replayed=replayed)


def _moe(jobs: Jobs, physics: Physics, rates: GemmRates, plain: GemmRates) -> PartTime:
    shape, tally = jobs.model, _Tally(jobs, physics)
    bits = jobs.recompute
    whole = has(bits, Recompute.MOE)
    h, local = float(shape.hidden), sharded_tokens(jobs)
    tally.memory(8 * h * local, kernels=2, replayed=whole | has(bits, Recompute.LAYERNORM))
    tally.gemm(plain, local, np.asarray(float(shape.experts)), np.asarray(h), replayed=whole)
    scoring = np.where(jobs.router_fusion, 16.0, 48.0) * shape.experts * local
    tally.memory(scoring, kernels=4, replayed=whole)
    if shape.moe_latent:
        width = np.asarray(float(shape.moe_latent))
        tally.gemm(rates, local, width, np.asarray(h), replayed=whole)
        tally.gemm(rates, local, np.asarray(h), width, replayed=whole)
    if shape.shared_ffn:
        before = tally.sums["forward"].copy()
        _dense_mlp(tally, rates, shape.shared_ffn, whole | has(bits, Recompute.SHARED_EXPERTS))
        tally.sums["cover"] += tally.sums["forward"] - before
    _experts(tally, rates, gemm_rates(jobs, physics, grouped=True), whole)
    router = np.where(jobs.router_fusion, 8.0, 14.0)
    tally.launches(router, has(jobs.cuda_graph, Graph.MOE_ROUTER) | has(jobs.cuda_graph, Graph.MOE))
    tally.launches(10.0, has(jobs.cuda_graph, Graph.MOE_PREPROCESS) | has(jobs.cuda_graph, Graph.MOE))
    each = np.where(jobs.grouped_gemm, 12.0, 6.0 + 6.0 * shape.experts / jobs.ep)
    tally.launches(each + np.where(jobs.permute_fusion, 4.0, 16.0), has(jobs.cuda_graph, Graph.MOE))
    static = has(jobs.cuda_graph, Graph.FULL_ITERATION) | has(jobs.cuda_graph, Graph.MOE) | (jobs.capacity_factor > 0)
    tally.sums["sync"] += np.where(static | (jobs.ep == 1), 0.0, physics.sync_s)
    return tally.done()


def _experts(tally: _Tally, rates: GemmRates, grouped: GemmRates, whole: Bools) -> None:
    """Permutation, grouped GEMMs and activation of the routed experts of one rank."""
    jobs, shape, physics = tally.jobs, tally.jobs.model, tally.physics
    copies = expert_copies(jobs) * routing_imbalance(jobs, physics)
    local_experts = np.maximum(shape.experts / jobs.ep, 1.0)
    width, ffn = np.asarray(float(expert_width(shape))), shape.moe_ffn / jobs.etp
    traffic = np.where(jobs.permute_fusion, 1.0, physics.unfused_traffic)
    tally.memory(4 * 4 * width * copies * traffic / jobs.etp, kernels=4, fused=False, replayed=whole)
    fan = 2 if shape.gated_mlp else 1
    # One call per expert pays the fixed cost of a GEMM each time; a grouped call pays it once.
    fixed = np.where(jobs.grouped_gemm, 1.0, local_experts)
    dense, expert = (replace(one, tau_s=one.tau_s * fixed) for one in (rates, grouped))
    tally.gemm(dense, copies, fan * ffn, width, groups=local_experts, expert=expert, replayed=whole)
    activation = whole | has(jobs.recompute, Recompute.MOE_ACT)
    tally.memory(2 * (fan + 1) * ffn * copies, replayed=activation)
    tally.gemm(dense, copies, width, ffn, groups=local_experts, expert=expert, replayed=whole)


def _mamba(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """Mamba-2 mixer: projections as GEMMs; convolution and chunked scan bound by memory traffic."""
    shape, tally = jobs.model, _Tally(jobs, physics)
    rows, h = tokens_per_rank(jobs), np.asarray(float(shape.hidden))
    inner = shape.mamba_heads * shape.mamba_head_dim / jobs.tp
    state = 2 * shape.mamba_groups * shape.mamba_state / jobs.tp
    tally.memory(8 * h * sharded_tokens(jobs), kernels=2)
    tally.gemm(rates, rows, 2 * inner + state + shape.mamba_heads / jobs.tp, h)
    tally.memory(24 * (inner + state) * rows, kernels=6)
    tally.gemm(rates, rows, h, inner)
    tally.launches(18.0, False)
    return tally.done()


def _embedding(jobs: Jobs, physics: Physics) -> PartTime:
    shape, tally = jobs.model, _Tally(jobs, physics)
    tally.full = np.zeros(jobs.size)
    tally.memory(4.0 * shape.hidden * tokens_per_rank(jobs))
    shared = shape.tied_embeddings & (jobs.pp == 1)  # one matrix, counted by the head
    tally.sums["weights"] += np.where(shared, 0.0, shape.vocab * shape.hidden / jobs.tp)
    tally.launches(4.0, False)
    return tally.done()


def _head(jobs: Jobs, physics: Physics, plain: GemmRates) -> PartTime:
    """Final norm, logits in BF16 and cross-entropy over FP32 logits (12 bytes per logit fused, 28 unfused)."""
    shape, tally = jobs.model, _Tally(jobs, physics)
    tally.full = np.zeros(jobs.size)
    rows, columns = tokens_per_rank(jobs), shape.vocab / jobs.tp
    tally.memory(8.0 * shape.hidden * sharded_tokens(jobs))
    tally.gemm(plain, rows, columns, np.asarray(float(shape.hidden)))
    fused = jobs.cross_entropy_fusion | jobs.compiled
    tally.memory(np.where(fused, 12.0, 28.0) * columns * rows, kernels=3, fused=False)
    tally.launches(np.where(fused, 6.0, 16.0), False)
    return tally.done()


def _mtp(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """The projection that joins hidden state and next embedding in front of a multi-token-prediction layer."""
    shape, tally = jobs.model, _Tally(jobs, physics)
    h = np.asarray(float(shape.hidden))
    tally.memory(16 * h * sharded_tokens(jobs), kernels=3)
    tally.gemm(rates, tokens_per_rank(jobs), h / jobs.tp, 2 * h)
    tally.launches(8.0, False)
    return tally.done()
