"""Faults of the router's auxiliary losses: their scale, their gradient, and what the log says of them."""

from __future__ import annotations

from collections.abc import Callable

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


declare(
    "F042",
    "Aux loss gradient too small by cp",
    group="aux-loss",
    source="NVIDIA/Megatron-LM#2237",
    patches={_ATTACHED: without_context_parallel_size},
    workload="moe",
    layout={"cp": 2},
)
declare(
    "F043",
    "Aux loss gradient too small by tp x cp",
    group="aux-loss",
    source="NVIDIA/Megatron-LM#5047",
    patches={_ATTACHED: by_local_tokens},
    workload="moe",
    layout=_SP,
)
declare(
    "F045",
    "Sequence aux loss gradient depends on the micro-batch size",
    group="aux-loss",
    source="NVIDIA/Megatron-LM#5798",
    patches={_ATTACHED: by_sequences_of_a_microbatch},
    workload="moe",
    layout={"mbs": 4},
)
declare(
    "F046",
    "Aux loss from scores that are not normalised",
    group="aux-loss",
    source="NVIDIA/Megatron-LM@cfe7b066c0",
    patches={"router.balance_scores": raw_scores},
    workload="sigmoid",
)
declare(
    "F047",
    "Recomputation counts the aux loss twice in the log",
    group="aux-loss",
    source="NVIDIA/Megatron-LM#1330",
    patches={"observer.record": counted_again},
    workload="moe",
    layout={"recompute_granularity": "full"},
    note="Training is right, the logged auxiliary loss is twice as large.",
)
declare(
    "F048",
    "Aux loss never attached",
    group="aux-loss",
    source="NVIDIA-NeMo/Automodel#1408",
    patches={_ATTACHED: never_attached},
    workload="moe",
)
declare(
    "F049",
    "Aux loss coefficient not forwarded",
    group="aux-loss",
    source="verl-project/verl#4103",
    patches={"router.aux_coefficient": coefficient_not_forwarded},
    workload="moe",
)
declare(
    "F112",
    "Auxiliary loss summed over micro-batches",
    group="aux-loss",
    source="NVIDIA/Megatron-LM#4070",
    patches={_ATTACHED: summed_over_microbatches},
    workload="moe",
)
declare(
    "F126",
    "Aux loss inherited where the recipe has none",
    group="objective",
    source="NVIDIA/Megatron-LM#5694",
    patches={"router.aux_coefficient": coefficient_inherited},
    workload="unbalanced",
)
declare(
    "F127",
    "Logged aux loss is a mean over the wrong number of layers",
    group="logging",
    source="NVIDIA-NeMo/Megatron-Bridge#5795",
    patches={"step.printed": over_too_many_layers},
    workload="sigmoid",
    note="Training is right: only the logged auxiliary loss is not the one computed.",
)
