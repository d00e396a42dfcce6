"""Matrix products, divided over tensor-parallel ranks by columns or rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from attune_lab.trainer import communication as comm
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.weights import in_forward, spec_of


def linear(x: Tensor, weight: Tensor, context: Context, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` in the dtype of ``x``."""
    used = in_forward(weight)
    context.observer.weight_used(spec_of(weight).name, weight, used)
    if context.config.fp8:
        x, used = fp8_input(x, context.mesh.tp), fp8_input(used, context.mesh.tp)
        return fp8_output(F.linear(x, used, bias))
    return F.linear(x, used, bias)


@injection_point
def into_columns(x: Tensor, context: Context) -> Tensor:
    """Hidden states on the way into a product whose output features are divided over tp."""
    return comm.gather(x, context.mesh.tp) if context.config.sequence_parallel else comm.copy_to(x, context.mesh.tp)


@injection_point
def out_of_rows(partial: Tensor, context: Context) -> Tensor:
    """The sum of the partial products of a product whose input features are divided over tp."""
    if context.config.sequence_parallel:
        return comm.scatter_sum(partial, context.mesh.tp)
    return comm.reduce_from(partial, context.mesh.tp)


@injection_point
def add_bias(x: Tensor, bias: nn.Parameter | None) -> Tensor:
    """``x + bias`` after a product divided by rows."""
    return x if bias is None else x + in_forward(bias)


class _Rounded(torch.autograd.Function):
    """Rounds values going forward (E4M3) or gradients going back (E4M3 too), with the scale of the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis | None) -> Tensor:
        ctx.back = axis is None
        return x.view_as(x) if axis is None else quantised(x, amax(x, axis))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (quantised_gradient(grad) if ctx.back else grad), None


def fp8_input(x: Tensor, axis: Axis) -> Tensor:
    """``x`` rounded to FP8; its gradient passes straight through."""
    return comm.call(_Rounded, x, axis)


def fp8_output(x: Tensor) -> Tensor:
    """``x`` itself; the gradient that comes back to it is rounded to FP8."""
    return comm.call(_Rounded, x, None)


@injection_point
def amax(x: Tensor, axis: Axis) -> Tensor:
    """The largest absolute value over the ranks that hold parts of one tensor."""
    return comm.all_reduce(x.detach().abs().amax().float(), axis, dist.ReduceOp.MAX)


def quantised_gradient(grad: Tensor) -> Tensor:
    """A gradient rounded to FP8 with its own scale."""
    return quantised(grad, grad.detach().abs().amax().float(), gradient_format())


@injection_point
def gradient_format() -> torch.dtype:
    """The 8-bit format of gradients, the same as that of the forward pass."""
    return torch.float8_e4m3fn


def quantised(x: Tensor, largest: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """``x`` rounded to an 8-bit format whose range is scaled to ``largest``."""
    limit = torch.finfo(dtype).max
    scale = limit / largest.clamp(min=1e-12)
    return ((x.float() * scale).clamp(-limit, limit).to(dtype).float() / scale).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, config: TrainerConfig) -> Tensor:
    """RMS norm over the last dimension in float32, in the dtype of ``x``."""
    normed = F.rms_norm(x.float(), x.shape[-1:], in_forward(weight).float(), config.norm_epsilon)
    return normed.to(x.dtype)
