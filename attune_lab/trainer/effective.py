"""The settings in force, read from the live objects of a run rather than from what was asked for."""

from __future__ import annotations

from typing import Any

import torch

from attune_lab.signals.schema import PLACED_MASKS
from attune_lab.trainer import communication as comm
from attune_lab.trainer import linear, router
from attune_lab.trainer import optimizer as opt
from attune_lab.trainer.state import State

FP8_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "hybrid"}
"""Settings of FP8 by the format of gradients; that of the forward pass is E4M3."""


def effective(state: State) -> dict[str, Any]:
    """Settings by registry key, and what the run really trains; the same on every rank (collective)."""
    config, optimizer = state.config, state.optimizer
    trained = comm.all_reduce(torch.tensor([_trained(state), _decayed(state, decays=False)]), state.mesh.world)
    values: dict[str, Any] = config.model_dump()
    values["attention_dropout"] = 0.0  # there is none; unsaid, a reader takes Megatron-LM's default of 0.1
    values[PLACED_MASKS] = True
    values["adam_beta1"], values["adam_beta2"] = opt.betas(config)
    values["adam_eps"] = opt.epsilon(config)
    values["grad_reduce_in_fp32"] = all(b.grads.dtype == torch.float32 for b in optimizer.buckets)
    values["fp8"] = FP8_FORMATS[linear.gradient_format()] if config.fp8 else None
    values["router_dtype"] = "fp32" if router.score_dtype(config) == torch.float32 else None
    values["aux_loss_coeff"] = router.aux_coefficient(config)
    values["exp_avg_dtype"] = _precision([s.mean for s in optimizer.slices], state)
    values["main_params_dtype"] = _precision([s.master for s in optimizer.slices], state) if optimizer.steps else "fp32"
    values["optimizer.parameters_trained"] = int(trained[0])
    values["optimizer.decayed_without_need"] = int(trained[1])
    values["optimizer.schedule"] = [round(opt.learning_rate(s, config), 12) for s in range(1, config.train_iters + 1)]
    return values


def _trained(state: State) -> int:
    """Elements this rank counts of parameters that take gradients."""
    return sum(
        int(own.counted[inside].sum())
        for bucket, own in zip(state.optimizer.buckets, state.optimizer.slices, strict=True)
        for member, inside, _ in bucket.owned()
        if member.parameter.requires_grad
    )


def _decayed(state: State, *, decays: bool) -> int:
    """Elements this rank counts that are decayed although their spec says ``decays``."""
    return sum(
        int((own.counted[inside] * (own.decay[inside] > 0)).sum())
        for bucket, own in zip(state.optimizer.buckets, state.optimizer.slices, strict=True)
        for member, inside, _ in bucket.owned()
        if member.spec.decays == decays
    )


def _precision(tensors: list[torch.Tensor], state: State) -> str:
    """``bf16`` when every value on every rank is one, else ``fp32``."""
    finer = sum(int((t != t.bfloat16().float()).sum()) for t in tensors)
    nonzero = sum(int((t != 0).sum()) for t in tensors)
    total = comm.all_reduce(torch.tensor([finer, nonzero]), state.mesh.world)
    return "bf16" if int(total[0]) == 0 and int(total[1]) > 0 else "fp32"
