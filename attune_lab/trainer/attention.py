"""Grouped-query attention with rotary positions, divided over heads (tp) and over the sequence (cp)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.linear import add_bias, into_columns, linear, out_of_rows, rms_norm
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.recompute import recomputed
from attune_lab.trainer.weights import Builder, Spec, in_forward

CHUNK = 16
"""Keys per block of the chunked kernel."""


class Attention(nn.Module):
    """Hidden states (S', B, H) to hidden states of the same shape; S' is a slice with sequence parallelism."""

    def __init__(self, name: str, build: Builder) -> None:
        super().__init__()
        config, tp = build.config, build.mesh.tp
        head = config.hidden // config.heads
        columns, rows = ((0, tp),), ((1, tp),)
        inner, kv = config.heads * head, config.kv_groups * head
        self.query = build.matrix(f"{name}.query", inner, config.hidden, columns)
        self.key, self.value = (self._kv(f"{name}.{which}", kv, build) for which in ("key", "value"))
        self.output = build.matrix(f"{name}.output", config.hidden, inner, rows)
        bias = config.add_bias_linear
        self.query_bias = build.bias(f"{name}.query_bias", inner, columns) if bias else None
        self.output_bias = build.bias(f"{name}.output_bias", config.hidden) if bias else None
        summed = tp.size > 1  # each rank norms its own heads only
        self.query_norm = self.key_norm = self.sink = None
        if config.qk_layernorm:
            self.query_norm = build.norm(f"{name}.query_norm", head, summed_over_tp=summed)
            self.key_norm = build.norm(f"{name}.key_norm", head, summed_over_tp=summed)
        if config.softmax_type == "learnable":
            self.sink = build.parameter(Spec(f"{name}.sink", (config.heads,), columns, decays=False))

    def _kv(self, name: str, rows: int, build: Builder) -> nn.Parameter:
        """Weights of keys or values, divided by groups; a single group is whole on every rank, for its own queries."""
        config, tp = build.config, build.mesh.tp
        shape, std = (rows, config.hidden), config.init_method_std
        if config.kv_groups == 1:
            return build.parameter(Spec(name, shape, std=std, summed_over_tp=tp.size > 1))
        return build.parameter(Spec(name, shape, ((0, tp),), std))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The attention branch of a layer."""
        x = into_columns(x, context)
        head = context.config.hidden // context.config.heads
        query, key, value = (
            split_heads(linear(x, weight, context, bias), head)
            for weight, bias in ((self.query, self.query_bias), (self.key, None), (self.value, None))
        )
        if self.query_norm is not None and self.key_norm is not None:
            query = rms_norm(query, self.query_norm, context.config)
            key = rms_norm(key, self.key_norm, context.config)
        query, key = rotated(query, context), rotated(key, context)
        mixed = recomputed(over_context, query, key, value, self.sink, context, when="selective", config=context.config)
        return add_bias(out_of_rows(linear(mixed.flatten(2), self.output, context), context), self.output_bias)


def split_heads(x: Tensor, head: int) -> Tensor:
    """(S, B, heads x head) to (S, B, heads, head)."""
    return x.view(*x.shape[:-1], -1, head)


@injection_point
def rotated(x: Tensor, context: Context) -> Tensor:
    """Queries or keys (S, B, heads, head) turned by their positions."""
    first, second = x.float().chunk(2, -1)
    cos, sin = context.cos, context.sin
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


@injection_point
def over_context(query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, context: Context) -> Tensor:
    """Attention of the own queries over the whole sequence; (S / cp, B, heads, head) in and out."""
    cp = context.mesh.cp
    if context.config.cp_comm_type == "a2a":
        query, key, value = (heads_for_sequence(t, cp) for t in (query, key, value))
        return sequence_for_heads(core(query, key, value, own_heads(sink, cp), context), cp)
    return core(query, whole_sequence(key, cp), whole_sequence(value, cp), sink, context)


@injection_point
def whole_sequence(x: Tensor, cp: Axis) -> Tensor:
    """Keys or values of all context-parallel ranks; gradients are summed back to their owner."""
    return comm.gather(x, cp)


def heads_for_sequence(x: Tensor, cp: Axis) -> Tensor:
    """(S / cp, B, heads, d) to (S, B, heads / cp, d)."""
    if cp.size == 1:
        return x
    rows = torch.cat(x.chunk(cp.size, 2))
    return comm.all_to_all(rows, cp, [x.shape[0]] * cp.size, [x.shape[0]] * cp.size)


def sequence_for_heads(x: Tensor, cp: Axis) -> Tensor:
    """(S, B, heads / cp, d) to (S / cp, B, heads, d)."""
    if cp.size == 1:
        return x
    own = x.shape[0] // cp.size
    return torch.cat(comm.all_to_all(x, cp, [own] * cp.size, [own] * cp.size).chunk(cp.size), 2)


def own_heads(sink: Tensor | None, cp: Axis) -> Tensor | None:
    """The sinks of the heads this rank attends with."""
    return None if sink is None else in_forward(sink).chunk(cp.size)[cp.rank]


def core(query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, context: Context) -> Tensor:
    """Softmax attention by the chosen kernel; (S, B, heads, d), key and value with fewer heads."""
    shared = query.shape[2] // key.shape[2]
    query, key, value = (t.permute(1, 2, 0, 3) for t in (query, key, value))
    key, value = (t.repeat_interleave(shared, 1) for t in (key, value))
    scale = softmax_scale(query.shape[-1])
    kernel = {"fused": _fused, "unfused": _unfused, "chunked": _chunked}[context.config.attention_backend]
    return kernel(query, key, value, context.allowed, scale, sink).permute(2, 0, 1, 3)


@injection_point
def softmax_scale(head: int) -> float:
    """Factor on the scores."""
    return 1.0 / math.sqrt(head)


def _fused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, sink: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


def _scores(q: Tensor, k: Tensor, allowed: Tensor, scale: float) -> Tensor:
    return (q @ k.mT).float().mul(scale).masked_fill(~allowed, -torch.inf)


def _unfused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, sink: Tensor | None) -> Tensor:
    scores = _scores(q, k, allowed, scale)
    if sink is None:
        return scores.softmax(-1).to(v.dtype) @ v
    column = in_forward(sink).float()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1].to(v.dtype) @ v


def _chunked(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float, sink: Tensor | None) -> Tensor:
    """Blocks of keys with a running maximum. **Source:** arXiv 2205.14135 (FlashAttention), algorithm 1."""
    highest = torch.full((*q.shape[:3], 1), -torch.inf)
    total, mixed = torch.zeros_like(highest), torch.zeros(q.shape)
    blocks = torch.split(k, CHUNK, 2), torch.split(v, CHUNK, 2), torch.split(allowed, CHUNK, 3)
    for keys, values, seen in zip(*blocks, strict=True):
        scores = _scores(q, keys, seen, scale)
        now = torch.maximum(highest, scores.detach().amax(-1, keepdim=True))
        safe = now.masked_fill(now.isinf(), 0.0)  # a query that has seen no key yet
        weights, shrink = (scores - safe).exp(), (highest - safe).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + (weights.to(v.dtype) @ values).float()
        highest = now
    return (mixed / total).to(v.dtype)
