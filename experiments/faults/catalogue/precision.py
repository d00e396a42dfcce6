"""Faults of precision: what is rounded, to what, and with whose scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.optimizer import Slice
from experiments.faults.catalogue.registry import declare


def hybrid_format(original: Callable[[], torch.dtype]) -> torch.dtype:
    """Gradients are rounded to E5M2, with two bits of mantissa, where E4M3 is meant for both passes."""
    return torch.float8_e5m2


def own_scale_for_all(original: Callable[[Tensor, Context], Tensor], x: Tensor, context: Context) -> Tensor:
    """The largest value is taken over the wrong group, so tensor-parallel ranks scale their parts of a tensor each by
    itself, and scale what they gather from others back by their own factor."""
    tp = context.mesh.tp
    largest = comm.all_gather(x.detach().abs().amax().float()[None], tp)
    factors = (largest[tp.rank] / largest).repeat_interleave(len(x))
    return original(x, context) * factors[:, None, None].to(x.dtype)


def masters_in_bfloat16(
    original: Callable[..., None], state: Slice, gradient: Tensor, rate: float, step: int, config: TrainerConfig
) -> None:
    """Masters are rounded to bfloat16: updates below half a unit of the last place are lost."""
    original(state, gradient, rate, step, config.model_copy(update={"main_params_dtype": "bf16"}))


def moments_in_bfloat16(
    original: Callable[..., None], state: Slice, gradient: Tensor, rate: float, step: int, config: TrainerConfig
) -> None:
    """Adam's moments are rounded to bfloat16."""
    original(state, gradient, rate, step, config.model_copy(update={"exp_avg_dtype": "bf16"}))


def gradients_in_bfloat16(
    original: Callable[..., torch.dtype], weights: torch.dtype, config: TrainerConfig
) -> torch.dtype:
    """Gradients are accumulated and reduced in bfloat16."""
    return torch.bfloat16


def coarse_partial_sums(original: Callable[[Tensor, Context], Tensor], partial: Tensor, context: Context) -> Tensor:
    """Partial products are rounded to two bits of mantissa before they are summed over tensor-parallel ranks."""
    rounded = partial.to(torch.float8_e5m2).to(partial.dtype)
    return original(partial + (rounded - partial).detach(), context)


declare(
    "F068",
    "FP8 gradients in E5M2",
    group="precision",
    source="NVIDIA-NeMo/Megatron-Bridge#638",
    patches={"linear.gradient_format": hybrid_format},
    workload="fp8",
)
declare(
    "F069",
    "FP8 scale of the wrong group",
    group="precision",
    source="NVIDIA/Megatron-LM#442",
    patches={"linear.into_columns": own_scale_for_all},
    workload="fp8",
    layout={"tp": 2, "sequence_parallel": True},
)
declare(
    "F088",
    "Masters in bfloat16",
    group="precision",
    source="pytorch/torchtitan@b5bcd76c docs/bf16_optimizer_states.md",
    patches={"optimizer.update": masters_in_bfloat16},
)
declare(
    "F089",
    "Gradients accumulated in bfloat16",
    group="precision",
    source="NVIDIA-NeMo/Megatron-Bridge#3799",
    patches={"buckets.gradient_dtype": gradients_in_bfloat16},
)
declare(
    "F090",
    "Moments in bfloat16",
    group="precision",
    source="pytorch/torchtitan@b5bcd76c docs/bf16_optimizer_states.md",
    patches={"optimizer.update": moments_in_bfloat16},
)
declare(
    "F097",
    "Coarse partial sums under sequence parallelism",
    group="numerics",
    source="NVIDIA-NeMo/Megatron-Bridge#5411",
    patches={"linear.out_of_rows": coarse_partial_sums},
    layout={"tp": 2, "sequence_parallel": True},
    note="The cause is open; two bits of mantissa give about the 8 % error of activations that the report measured.",
)
