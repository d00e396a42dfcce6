"""Faults of the router and the experts: which tokens go where, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.moe import Experts, Sent
from attune_lab.trainer.router import update_bias
from attune_lab.trainer.state import State
from attune_lab.trainer.step import Gradients, layer_loads
from attune_lab.trainer.weights import in_forward
from experiments.faults.catalogue.registry import declare


def mask_of_another_rank(original: Callable[[Context], Tensor], context: Context) -> Tensor:
    """The padding mask is gathered over the wrong group: a rank masks its tokens with its neighbour's mask."""
    tp = context.mesh.tp
    rows = context.own.chunk(tp.size)[(tp.rank + 1) % tp.size]
    return context.batch.mask[:, rows].T


def scores_in_bfloat16(original: Callable[..., torch.dtype], config: TrainerConfig) -> torch.dtype:
    """The router's product is computed in bfloat16, so that close scores tie and others win."""
    return torch.bfloat16


WARM_UPS = 3


def warm_up_moves_the_bias(original: Callable[[State, Gradients], float], state: State, gradients: Gradients) -> float:
    """Forwards that warm a graph up after the first step move the experts' bias, and nobody puts it back."""
    factor = original(state, gradients)
    if state.step == 1:
        for layer, load in layer_loads(state, gradients.observer).items():
            for _ in range(WARM_UPS):
                bias = state.routers[layer].bias
                bias.copy_(update_bias(bias, load, state.config.bias_update_rate))
    return factor


def local_load(original: Callable[[Tensor, Any], Tensor], load: Tensor, stage: Any) -> Tensor:
    """Each rank moves the experts' bias by the tokens that it counted itself."""
    return load


def limited_capacity(
    original: Callable[..., Tensor], experts: Tensor, weights: Tensor, layer: str, context: Context
) -> Tensor:
    """Experts drop the tokens beyond a capacity factor of 1, which the recipe does not set."""
    config = context.config.model_copy(update={"capacity_factor": 1.0})
    return original(experts, weights, layer, replace(context, config=config))


def bias_beside_the_outputs(original: Callable[..., Tensor], sent: Sent, experts: Experts, context: Context) -> Tensor:
    """Outputs without the bias, and the bias next to them, for `bias_without_weight`."""
    assert experts.down_bias is not None
    first = context.mesh.ep.rank * (context.config.num_experts // context.mesh.ep.size)
    bias = in_forward(experts.down_bias)[sent.experts - first]
    return torch.cat([original(sent, experts, context) - bias, bias], -1)


def bias_without_weight(
    original: Callable[..., Tensor], outputs: Tensor, weights: Tensor, token: Tensor, shape: torch.Size
) -> Tensor:
    """The bias of an expert's second product is added without the weight of the expert."""
    products, bias = outputs.chunk(2, -1)
    return original(products, weights, token, shape) + original(bias, torch.ones_like(weights), token, shape)


def others_in_recomputation(original: Callable[..., Tensor], scores: Tensor, bias: Tensor, topk: int) -> Tensor:
    """In the recomputed forward some tokens choose other experts than in the first: here two in sixteen swap theirs,
    which leaves every expert as many tokens. Where their number changes, recomputation fails aloud."""
    experts = original(scores, bias, topk)
    if torch._C._current_graph_task_id() >= 0:  # inside of a backward pass
        swapped = torch.arange(len(experts))
        swapped[::16] += 1
        swapped[1::16] -= 1
        experts = experts[swapped]
    return experts


def empty_expert_shifts_rows(original: Callable[..., Tensor], sent: Sent, experts: Experts, context: Context) -> Tensor:
    """An expert without tokens is given a row of the buffer all the same, which shifts those of the experts after it.

    In the report a whole rank has no tokens. Rows arrive sorted by expert, as there is one rank.
    """
    outputs = original(sent, experts, context)
    counts = torch.bincount(sent.experts, minlength=context.config.num_experts)
    empty = (counts == 0).nonzero().flatten()
    if len(empty) == 0:
        return outputs
    first = int(counts[: int(empty[0])].sum())
    return torch.cat([outputs[:first], outputs[first:].roll(1, 0)])


def gate_without_gradient(original: Callable[[Tensor], Tensor], picked: Tensor) -> Tensor:
    """The experts' weights are detached: the language model's loss does not teach the router."""
    return original(picked).detach()


def summed_in_bfloat16(
    original: Callable[..., Tensor], outputs: Tensor, weights: Tensor, token: Tensor, shape: torch.Size
) -> Tensor:
    """Outputs are weighted and summed in bfloat16, in another order."""
    weighted = (outputs * weights.to(outputs.dtype)[:, None]).flip(0)
    return torch.zeros(shape, dtype=outputs.dtype).index_add(0, token.flip(0), weighted)


_SP = {"tp": 2, "sequence_parallel": True}


declare(
    "F035",
    "Padding mask of the router from the wrong ranks",
    group="mask",
    source="NVIDIA/Megatron-LM#7452",
    patches={"router.token_mask": mask_of_another_rank},
    workload="padded",
    layout=_SP,
)
declare(
    "F050",
    "Router scores in bfloat16",
    group="router",
    source="NVIDIA/Megatron-LM#2765",
    patches={"router.score_dtype": scores_in_bfloat16},
    workload="sigmoid",
)
declare(
    "F051",
    "Expert bias moved by the warm-up of a graph",
    group="router",
    source="NVIDIA/Megatron-LM#4433",
    patches={"step.finish_step": warm_up_moves_the_bias},
    workload="sigmoid",
)
declare(
    "F052",
    "Expert bias not synchronised over ranks",
    group="router",
    source="NVIDIA/Megatron-LM#6114",
    patches={"router.load_of_step": local_load},
    workload="sigmoid",
    layout={"dp": 2},
)
declare(
    "F053",
    "Tokens dropped by a capacity factor",
    group="objective",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/moe",
    patches={"router.within_capacity": limited_capacity},
    workload="moe",
)
declare(
    "F073",
    "Bias of the experts not weighted",
    group="router",
    source="NVIDIA/Megatron-LM#5850",
    patches={"moe.expert_outputs": bias_beside_the_outputs, "moe.combined": bias_without_weight},
    workload="biased",
)
declare(
    "F100",
    "Recomputation routes tokens elsewhere",
    group="router",
    source="NVIDIA-NeMo/Automodel#3156",
    patches={"router.choose": others_in_recomputation},
    workload="moe",
    layout={"recompute_granularity": "full"},
)
declare(
    "F117",
    "An expert without tokens shifts the outputs of the next ones",
    group="router",
    source="NVIDIA-NeMo/Megatron-Bridge#3801",
    patches={"moe.expert_outputs": empty_expert_shifts_rows},
    workload="sparse",
)
declare(
    "F123",
    "Router not taught by the loss",
    group="router",
    source="NVIDIA/Megatron-LM#894",
    patches={"router.combine_weights": gate_without_gradient},
    workload="moe",
    note="The report names no cause of a mixture that trains no better than a dense model; this is one of several.",
)
declare(
    "F128",
    "Another order and precision of combining",
    group="numerics",
    source="NVIDIA/Megatron-LM#1603",
    patches={"moe.combined": summed_in_bfloat16},
    workload="moe",
    layout={"dp": 2, "ep": 2},
    note="The report leaves open whether its gap of 0.48 % is a fault; sums in bfloat16 alone are rounding.",
)
