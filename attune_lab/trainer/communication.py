"""Collectives that carry gradients. Each is the identity on an axis of size 1.

Sequences lie along dimension 0. Gradients are sums over ranks throughout, never means.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer.mesh import Axis


def all_reduce(x: Tensor, axis: Axis, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """``x`` reduced over the axis, as a new tensor without a gradient."""
    x = x.detach().clone()
    if axis.size > 1:
        dist.all_reduce(x, op, group=axis.group)
    return x


def all_gather(x: Tensor, axis: Axis) -> Tensor:
    """The ranks' tensors, equal in shape, joined along dimension 0; without a gradient."""
    if axis.size == 1:
        return x.detach()
    joined = x.new_empty((axis.size * x.shape[0], *x.shape[1:]))
    dist.all_gather_single(joined, x.detach().contiguous(), group=axis.group)
    return joined


def reduce_scatter(x: Tensor, axis: Axis) -> Tensor:
    """This rank's share along dimension 0 of the sum over the axis; without a gradient."""
    if axis.size == 1:
        return x.detach()
    share = x.new_empty((x.shape[0] // axis.size, *x.shape[1:]))
    dist.reduce_scatter_single(share, x.detach().contiguous(), group=axis.group)
    return share


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.axis), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        return all_reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return all_gather(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grad, ctx.axis), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return reduce_scatter(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather(grad, ctx.axis), None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, received: list[int], sent: list[int]) -> Tensor:
        ctx.axis, ctx.splits = axis, (sent, received)
        return exchange(x, axis, received, sent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return exchange(grad, ctx.axis, *ctx.splits), None, None, None


def exchange(x: Tensor, axis: Axis, received: list[int], sent: list[int]) -> Tensor:
    """Rows of every rank for this one; ``sent`` and ``received`` count rows by rank. Without a gradient."""
    if axis.size == 1:
        return x.detach()
    rows = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(rows, x.detach().contiguous(), received, sent, group=axis.group)
    return rows


def copy_to(x: Tensor, axis: Axis) -> Tensor:
    """``x``, equal on all ranks, on its way into a computation that is divided over the axis."""
    return x if axis.size == 1 else call(_Copy, x, axis)


def reduce_from(x: Tensor, axis: Axis) -> Tensor:
    """The sum of the ranks' parts of a divided computation, equal on all ranks."""
    return x if axis.size == 1 else call(_Reduce, x, axis)


def gather(x: Tensor, axis: Axis) -> Tensor:
    """All ranks' shares along dimension 0, on the way into a divided computation: gradients are summed back."""
    return x if axis.size == 1 else call(_Gather, x, axis)


def scatter_sum(x: Tensor, axis: Axis) -> Tensor:
    """This rank's share along dimension 0 of the sum of the ranks' parts."""
    return x if axis.size == 1 else call(_Scatter, x, axis)


def all_to_all(x: Tensor, axis: Axis, received: list[int], sent: list[int]) -> Tensor:
    """Rows of every rank for this one; gradients go back the same way."""
    return x if axis.size == 1 else call(_AllToAll, x, axis, received, sent)


def call(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result
