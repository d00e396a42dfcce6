"""Faults of the update, its schedule, and what the run logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


def _declare(name: str, title: str, source: str, point: str, patch: Callable[..., Any], **settings: Any) -> None:
    declare(name, title, source=source, patches={point: patch}, **{"group": "optimizer"} | settings)


_declare("F067", "updates skipped in silence", "NVIDIA/Megatron-LM#663", "step.apply_update", every_fourth_skipped)
_declare(
    "F082", "decay of the learning rate over a fixed number of iterations", "NVIDIA-NeMo/RL#939",
    "optimizer.learning_rate", fixed_decay, group="schedule",
)  # fmt: skip
_declare(
    "F084", "learning rates of groups lost at load", "NVIDIA/Megatron-LM#4705",
    "optimizer.update", one_rate_after_load, group="schedule", workload="decoupled",
)  # fmt: skip
_declare("F085", "weight decay on norms", "ServiceNow/Fast-LLM#545", "optimizer.weight_decay", all_decay)
_declare(
    "F086", "beta2 of another recipe", "NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py",
    "optimizer.betas", default_betas,
)  # fmt: skip
_declare(
    "F087",
    "step counter of Adam one ahead",
    "NVIDIA-NeMo/Megatron-Bridge#5680",
    "optimizer.bias_corrections",
    counter_ahead,
)
_declare(
    "F108", "logged loss divided by the micro-batches", "pytorch/torchtitan#1759",
    "step.printed", loss_over_microbatches, group="logging",
    note="Training is right: the logged loss is not that of the tokens.",
)  # fmt: skip
