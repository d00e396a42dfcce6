"""Recomputation of activations in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point


@injection_point
def recomputed(function: Callable[..., Tensor], *arguments: Any, when: str, config: TrainerConfig) -> Tensor:
    """``function(*arguments)``, run again in the backward pass when the configuration says so."""
    if config.recompute_granularity != when:
        return function(*arguments)
    result: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result
