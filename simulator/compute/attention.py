"""Time of an attention block: projections, rotary embedding, the attention kernel.

Shape letters:  B = jobs.
"""

from __future__ import annotations

import numpy as np

from simulator.compute.tally import Floats, PartTime, Tally, sharded_tokens, tensor_launches
from simulator.job import Graph, Jobs, Recompute, has, tokens_per_rank
from simulator.kernels import AttentionShape, GemmRates, attention_fit, attention_seconds, gemm_seconds
from simulator.models import layer_flops
from simulator.physics import Physics
from simulator.recording import recorded

_HOPPER = 9  # compute capability from which matrix instructions are asynchronous and kernels written anew
_SCORE_KERNELS = 8.0  # transposes, two batched products, mask, softmax and dropout in place of one fused kernel
_SOFTMAX_MATRICES = 4  # a block of the fused softmax works on so many score matrices
_SOFTMAX_BYTES, _DROPOUT_BYTES = 4.0, 5.0  # of one score, forward: read and write, and a byte of mask
_APART_BYTES, _APART_KERNELS = 34.0, 6.0  # to FP32, scale, mask, softmax, back: kernels of their own


@recorded
def attention_time(jobs: Jobs, physics: Physics, rates: GemmRates) -> PartTime:
    """Attention of one layer with its norm and projections, seconds, shape (B,)."""
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
    seen = AttentionShape(rows, jobs.cp.astype(np.float64), heads, kv_heads, qk, v)
    _fused_kernel(tally, seen)
    if not jobs.fused_attention.all():
        _score_kernels(tally, rates, seen)
    tally.gemm(rates, rows, np.asarray(h), heads * v)
    _adapters(tally, heads * qk + 2 * kv_heads * qk + h)
    tally.launches(14.0 + tensor_launches(jobs), has(jobs.cuda_graph, Graph.ATTN))
    return tally.done()


def _adapters(tally: Tally, outputs: Floats) -> None:
    """Low-rank adapters of the projections where the matrices are frozen: their products are bound by memory.

    The input is read, the product written, and added to the ``outputs`` (elements a token) of the frozen matrices.
    """
    jobs = tally.jobs
    if not jobs.frozen.any():
        return
    traffic = (8 * outputs + 4.0 * jobs.model.hidden) * tokens_per_rank(jobs)
    tally.memory(np.where(jobs.frozen, traffic, 0.0), kernels=0)


def _fused_kernel(tally: Tally, seen: AttentionShape) -> None:
    """Scores and weighted sum, causal half, where they are one kernel."""
    jobs, shape = tally.jobs, tally.jobs.model
    replayed = has(jobs.recompute, Recompute.CORE_ATTN)
    seq = jobs.seq_len.astype(np.float64)
    attended = np.where(jobs.sample_len > 0, np.minimum(jobs.sample_len, seq), seq)
    flops = seen.queries / jobs.tp * layer_flops(shape, attended)["core_attention"]
    chip = jobs.cluster.accelerator
    dated = jobs.portable_attention & (chip.arch_major >= _HOPPER)
    speed = tally.physics.attention_speed * np.where(dated, tally.physics.portable_attention, 1.0)
    fit = attention_fit(chip, "mla" if shape.attention == "mla" else "gqa")
    speed = speed * np.where(jobs.fp8_attention, tally.physics.fp8_attention, 1.0)
    seconds = attention_seconds(fit, chip, seen, flops, speed=speed) * jobs.fused_attention
    tally.attention(seconds, replayed=replayed)


def _score_kernels(tally: Tally, rates: GemmRates, seen: AttentionShape) -> None:
    """Scores as a matrix in memory, whole square: batched products, masked softmax and dropout between them.

    Softmax and dropout read the scores and write them, with a mask of a byte, in 2-byte formats. The fused masked
    softmax wants a multiple of four matrices; for others every operation is a kernel over FP32 scores.
    **Source:** bytes counted; Megatron-LM `megatron/model/fused_softmax.py`, is_kernel_available.
    """
    jobs = tally.jobs
    replayed = has(jobs.recompute, Recompute.CORE_ATTN)
    seq = jobs.seq_len.astype(np.float64)
    matrices = seen.queries * seen.heads / seq
    apart = matrices % _SOFTMAX_MATRICES != 0
    on, rows = ~jobs.fused_attention, seen.queries * seen.heads
    products = gemm_seconds(rates, rows, seq, np.asarray(seen.qk), groups=matrices)
    products = products + gemm_seconds(rates, rows, np.asarray(seen.v), seq, groups=matrices)
    tally.products(products * on, 2 * products * on, replayed=replayed)
    traffic = np.where(apart, _APART_BYTES, _SOFTMAX_BYTES) + _DROPOUT_BYTES
    tally.memory(traffic * rows * seq * on, kernels=0, fused=False, replayed=replayed)
    kernels = _SCORE_KERNELS + np.where(apart, _APART_KERNELS, 0.0)
    tally.launches(kernels * on, has(jobs.cuda_graph, Graph.ATTN))
