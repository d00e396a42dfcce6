"""Faults of the update, its schedule, and what the run logs."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.optimizer import Slice
from attune_lab.trainer.state import State
from attune_lab.trainer.step import Gradients
from attune_lab.trainer.weights import Spec
from experiments.faults.catalogue.registry import declare


def every_fourth_skipped(original: Callable[[State, float], float], state: State, norm: float) -> float:
    """Every fourth update is left out in silence, as after an overflow; the step counts all the same."""
    return math.nan if (state.step + 1) % 4 == 0 else original(state, norm)


def fixed_decay(original: Callable[[int, TrainerConfig], float], step: int, config: TrainerConfig) -> float:
    """The learning rate decays over 1,000 iterations, whatever the length of the run."""
    return original(step, config.model_copy(update={"lr_decay_iters": 1000}))


LOADED_AFTER = 10
"""Step after which a checkpoint is loaded."""


def one_rate_after_load(
    original: Callable[..., None], state: Slice, gradient: Tensor, rate: float, step: int, config: TrainerConfig
) -> None:
    """Loading a checkpoint gives all groups of parameters the same learning rate."""
    if step > LOADED_AFTER:
        state.rate.fill_(1.0)
    original(state, gradient, rate, step, config)


def all_decay(original: Callable[[Spec, TrainerConfig], float], spec: Spec, config: TrainerConfig) -> float:
    """Norms and biases decay like matrices."""
    return config.weight_decay


def default_betas(
    original: Callable[[TrainerConfig], tuple[float, float]], config: TrainerConfig
) -> tuple[float, float]:
    """The second beta is the default, 0.999, in place of the recipe's."""
    return config.adam_beta1, 0.999


def counter_ahead(
    original: Callable[[int, TrainerConfig], tuple[float, float]], step: int, config: TrainerConfig
) -> tuple[float, float]:
    """A dummy step while loading leaves the counter of updates one ahead: the first is corrected as the second."""
    return original(step + 1, config)


def loss_over_microbatches(
    original: Callable[[State, Gradients], dict[str, float]], state: State, gradients: Gradients
) -> dict[str, float]:
    """The logged loss is divided by the number of micro-batches once more."""
    figures = original(state, gradients)
    return figures | {"lm loss": figures["lm loss"] / state.config.microbatches}


declare(
    "F067",
    "Updates skipped in silence",
    group="optimizer",
    source="NVIDIA/Megatron-LM#663",
    patches={"step.apply_update": every_fourth_skipped},
)
declare(
    "F082",
    "Decay of the learning rate over a fixed number of iterations",
    group="schedule",
    source="NVIDIA-NeMo/RL#939",
    patches={"optimizer.learning_rate": fixed_decay},
)
declare(
    "F084",
    "Learning rates of groups lost at load",
    group="schedule",
    source="NVIDIA/Megatron-LM#4705",
    patches={"optimizer.update": one_rate_after_load},
    workload="decoupled",
)
declare(
    "F085",
    "Weight decay on norms",
    group="optimizer",
    source="ServiceNow/Fast-LLM#545",
    patches={"optimizer.weight_decay": all_decay},
)
declare(
    "F086",
    "Beta2 of another recipe",
    group="optimizer",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    patches={"optimizer.betas": default_betas},
)
declare(
    "F087",
    "Step counter of Adam one ahead",
    group="optimizer",
    source="NVIDIA-NeMo/Megatron-Bridge#5680",
    patches={"optimizer.bias_corrections": counter_ahead},
)
declare(
    "F108",
    "Logged loss divided by the micro-batches",
    group="logging",
    source="pytorch/torchtitan#1759",
    patches={"step.printed": loss_over_microbatches},
    note="Training is right: the logged loss is not that of the tokens.",
)
