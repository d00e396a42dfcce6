"""Time of an attention block: projections, rotary embedding, the attention kernel.

Shape letters:  B = jobs.
"""

from __future__ import annotations

import numpy as np

from simulator.compute.tally import TENSOR_LAUNCHES, Floats, PartTime, Tally, sharded_tokens
from simulator.job import Graph, Jobs, Recompute, has, tokens_per_rank
from simulator.kernels import AttentionShape, GemmRates, attention_fit, attention_seconds
from simulator.models import layer_flops
from simulator.physics import Physics
from simulator.recording import recorded

_HOPPER = 9  # compute capability from which matrix instructions are asynchronous and kernels written anew
_SCORE_KERNELS = 8.0  # transposes, two batched products, mask, softmax and dropout in place of one fused kernel


@recorded
def attention_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    shape, tally = jobs.model, Tally(jobs, physics)
    rows, local = tokens_per_rank(jobs), sharded_tokens(jobs)
    h, heads = float(shape.hidden), shape.heads / jobs.tp
    tally.memory(8 * h * local, kernels=2, replayed=has(jobs.recompute, Recompute.LAYERNORM))
    if shape.attention == "mla":
        kv_heads = heads
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
        passes = (shape.rotary and not shape.learned_positions) + (shape.qk_norm != "none")
        tally.memory(4 * passes * (heads + kv_heads) * qk * rows, kernels=2 * passes)
    _attention_kernel(tally, AttentionShape(rows, jobs.cp.astype(np.float64), heads, kv_heads, qk, v))
    tally.gemm(rates, rows, np.asarray(h), heads * v)
    _adapters(tally, heads * qk + 2 * kv_heads * qk + h)
    kernels = 14.0 + np.where(jobs.tp > 1, TENSOR_LAUNCHES, 0.0) + np.where(jobs.fused_attention, 0.0, _SCORE_KERNELS)
    tally.launches(kernels, has(jobs.cuda_graph, Graph.ATTN))
    return tally.done()


def _adapters(tally: Tally, outputs: Floats) -> None:
    """Low-rank adapters of the projections where the matrices are frozen: their products are bound by memory.

    The input is read, the product written, and added to the ``outputs`` (elements a token) of the frozen matrices.
    """
    jobs = tally.jobs
    if not np.any(jobs.frozen):
        return
    traffic = (8 * outputs + 4.0 * jobs.model.hidden) * tokens_per_rank(jobs)
    tally.memory(np.where(jobs.frozen, traffic, 0.0), kernels=0)


def _attention_kernel(tally: Tally, seen: AttentionShape) -> None:
    """Scores and weighted sum, causal half; without a fused kernel the score matrix travels through memory."""
    jobs, shape = tally.jobs, tally.jobs.model
    replayed = has(jobs.recompute, Recompute.CORE_ATTN)
    seq = jobs.seq_len.astype(np.float64)
    attended = np.where(jobs.sample_len > 0, np.minimum(jobs.sample_len, seq), seq)
    flops = seen.queries / jobs.tp * layer_flops(shape, attended)["core_attention"]
    flops = flops * np.where(jobs.fused_attention, 1.0, 2.0)
    chip = jobs.cluster.accelerator
    dated = jobs.portable_attention & (chip.arch_major >= _HOPPER)
    speed = tally.physics.attention_speed * np.where(dated, tally.physics.portable_attention, 1.0)
    fit = attention_fit(chip, "mla" if shape.attention == "mla" else "gqa")
    speed = speed * np.where(jobs.fp8_attention, tally.physics.fp8_attention, 1.0)
    tally.attention(attention_seconds(fit, chip, seen, flops, speed=speed), replayed=replayed)
    scores = np.where(jobs.fused_attention, 0.0, 8.0 * seen.queries * seen.heads * seq)
    tally.memory(scores, kernels=0, fused=False, replayed=replayed)
