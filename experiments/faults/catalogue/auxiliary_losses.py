"""Faults of the router's auxiliary losses: their scale, their gradient, and what the log says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.state import State
from attune_lab.trainer.step import Gradients
from experiments.faults.catalogue.registry import declare

Attach = Callable[[Tensor, Tensor, Context], Tensor]


def without_context_parallel_size(original: Attach, x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """The gradient of the loss lacks the factor of the context-parallel size; the logged value is right."""
    return original(x, loss / context.mesh.cp.size, context)


def by_local_tokens(original: Attach, x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """The gradient is scaled by the tokens of one rank: too small by the ranks that share a sequence, tp x cp."""
    return original(x, loss / context.mesh.tokens.size, context)


def by_sequences_of_a_microbatch(original: Attach, x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """Tokens are counted per sequence where they are divided out per micro-batch, which leaves a factor of 1/mbs."""
    return original(x, loss / context.config.mbs, context)


def summed_over_microbatches(original: Attach, x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """The loss is not divided by the number of micro-batches, so its weight grows with gradient accumulation.

    In the report it is the indexer's loss of sparse attention, which is attached in the same way.
    """
    return original(x, loss * context.config.microbatches, context)


def never_attached(original: Attach, x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """The result of the scaler that attaches the loss is thrown away: it is printed as usual and trains nothing."""
    return x


def raw_scores(original: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Sigmoid scores enter the balancing loss as they are, without being normalised over the experts."""
    return scores


def counted_again(
    original: Callable[..., None], metrics: dict[tuple[str, str, int], float], key: tuple[str, str, int], value: float
) -> None:
    """A recomputed layer adds its loss to the log a second time."""
    original(metrics, key, metrics.get(key, 0.0) + value)


def coefficient_not_forwarded(original: Callable[[TrainerConfig], float], config: TrainerConfig) -> float:
    """The wrapper around the trainer never passes the coefficient, whose default is 0."""
    return 0.0


def coefficient_inherited(original: Callable[[TrainerConfig], float], config: TrainerConfig) -> float:
    """The back end brings a coefficient of its own where the recipe has none."""
    return 1e-3


def over_too_many_layers(
    original: Callable[[State, Gradients], dict[str, float]], state: State, gradients: Gradients
) -> dict[str, float]:
    """The logged mean divides by layers that are counted twice, those of the multi-token module."""
    figures, layers = original(state, gradients), state.config.num_layers
    figures["load_balancing_loss"] *= layers / (layers + 2 * state.config.mtp_num_layers)
    return figures


_ATTACHED = "router.attached"
_SP = {"tp": 2, "sequence_parallel": True}


def _declare(name: str, title: str, source: str, point: str, patch: Callable[..., Any], **settings: Any) -> None:
    declare(name, title, source=source, patches={point: patch}, **{"group": "aux-loss", "workload": "moe"} | settings)


_declare(
    "F042", "aux loss gradient too small by cp", "NVIDIA/Megatron-LM#2237",
    _ATTACHED, without_context_parallel_size, layout={"cp": 2},
)  # fmt: skip
_declare(
    "F043", "aux loss gradient too small by tp x cp", "NVIDIA/Megatron-LM#5047",
    _ATTACHED, by_local_tokens, layout=_SP,
)  # fmt: skip
_declare(
    "F045", "sequence aux loss gradient depends on the micro-batch size", "NVIDIA/Megatron-LM#5798",
    _ATTACHED, by_sequences_of_a_microbatch, layout={"mbs": 4},
)  # fmt: skip
_declare(
    "F046", "aux loss from scores that are not normalised", "NVIDIA/Megatron-LM@cfe7b066c0",
    "router.balance_scores", raw_scores, workload="sigmoid",
)  # fmt: skip
_declare(
    "F047", "recomputation counts the aux loss twice in the log", "NVIDIA/Megatron-LM#1330",
    "observer.record", counted_again, layout={"recompute_granularity": "full"},
    note="Training is right, the logged auxiliary loss is twice as large.",
)  # fmt: skip
_declare("F048", "aux loss never attached", "NVIDIA-NeMo/Automodel#1408", _ATTACHED, never_attached)
_declare(
    "F049", "aux loss coefficient not forwarded", "verl-project/verl#4103",
    "router.aux_coefficient", coefficient_not_forwarded,
)  # fmt: skip
_declare(
    "F112", "auxiliary loss summed over micro-batches", "NVIDIA/Megatron-LM#4070", _ATTACHED, summed_over_microbatches
)
_declare(
    "F126", "aux loss inherited where the recipe has none", "NVIDIA/Megatron-LM#5694",
    "router.aux_coefficient", coefficient_inherited, group="objective", workload="unbalanced",
)  # fmt: skip
_declare(
    "F127", "logged aux loss is a mean over the wrong number of layers", "NVIDIA-NeMo/Megatron-Bridge#5795",
    "step.printed", over_too_many_layers, group="logging", workload="sigmoid",
    note="Training is right: only the logged auxiliary loss is not the one computed.",
)  # fmt: skip
