"""Embedding, output head and the losses, divided over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.linear import into_columns, linear
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.weights import in_forward


@injection_point
def embedded(tokens: Tensor, weight: Tensor, context: Context) -> Tensor:
    """Hidden states (S', B, H) of the tokens (B, S) at this rank's positions."""
    tp = context.mesh.tp
    ids = tokens[:, context.own].T
    rows = weight.shape[0]
    local = ids - tp.rank * rows
    outside = (local < 0) | (local >= rows)
    found = F.embedding(local.masked_fill(outside, 0), in_forward(weight))
    partial = found.masked_fill(outside[..., None], 0.0)
    return comm.scatter_sum(partial, tp) if context.config.sequence_parallel else comm.reduce_from(partial, tp)


@injection_point
def token_losses(hidden: Tensor, weight: Tensor, labels: Tensor, context: Context) -> Tensor:
    """Cross-entropy of every own token, shape (S / cp, B), float32, from normed hidden states (S', B, H)."""
    tp = context.mesh.tp
    logits = linear(head_input(hidden, context), weight, context).float()
    entropy = fused_cross_entropy if context.config.cross_entropy_fusion else cross_entropy
    return entropy(logits, labels[:, context.own].T, tp)


@injection_point
def head_input(hidden: Tensor, context: Context) -> Tensor:
    """Hidden states on the way into the head, whose vocabulary is divided over tp."""
    return into_columns(hidden, context)


@injection_point
def cross_entropy(logits: Tensor, labels: Tensor, tp: Axis) -> Tensor:
    """-log softmax at the labels; logits (..., V / tp) hold this rank's part of the vocabulary."""
    shifted = logits - comm.all_reduce(logits.amax(-1), tp, dist.ReduceOp.MAX)[..., None]
    total = comm.reduce_from(shifted.exp().sum(-1), tp)
    at_label = comm.reduce_from(_picked(shifted, labels, tp), tp)
    return total.log() - at_label


def _picked(logits: Tensor, labels: Tensor, tp: Axis) -> Tensor:
    """Logits at the labels, 0 where another rank holds them."""
    columns = logits.shape[-1]
    local = labels - tp.rank * columns
    outside = (local < 0) | (local >= columns)
    return logits.gather(-1, local.masked_fill(outside, 0)[..., None])[..., 0].masked_fill(outside, 0.0)


class _Fused(torch.autograd.Function):
    """Keeps the softmax only and writes its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, tp: Axis) -> Tensor:
        shifted = logits - comm.all_reduce(logits.amax(-1), tp, dist.ReduceOp.MAX)[..., None]
        sums = comm.all_reduce(torch.stack([shifted.exp().sum(-1), _picked(shifted, labels, tp)]), tp)
        ctx.save_for_backward(shifted.exp_().div_(sums[0][..., None]), labels)
        ctx.tp = tp
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, labels = ctx.saved_tensors
        local = labels - ctx.tp.rank * softmax.shape[-1]
        inside = (local >= 0) & (local < softmax.shape[-1])
        one_hot = torch.zeros_like(softmax).scatter_(-1, local.clamp(0, softmax.shape[-1] - 1)[..., None], 1.0)
        return (softmax - one_hot * inside[..., None]) * grad[..., None], None, None


def fused_cross_entropy(logits: Tensor, labels: Tensor, tp: Axis) -> Tensor:
    """The same as `cross_entropy` with less memory."""
    return comm.call(_Fused, logits, labels, tp)


@injection_point
def masked_sum(losses: Tensor, mask: Tensor, context: Context) -> Tensor:
    """The sum of the losses of unmasked own tokens; ``mask`` is (B, S)."""
    return (losses * mask[:, context.own].T).sum()


@injection_point
def loss_weight(context: Context, mask: Tensor, total: float) -> float:
    """What the summed loss of a micro-batch is multiplied by, so that the micro-batches of all ranks add up.

    Args:
        context: of the micro-batch.
        mask: its loss mask, shape (B, S).
        total: unmasked tokens of the global batch.
    """
    if context.config.per_token_loss:
        return 1.0 / max(total, 1.0)
    return context.config.mbs / context.config.gbs / max(float(mask.sum()), 1.0)
