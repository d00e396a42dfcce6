"""Copies of one embedding on two pipeline stages that go ways of their own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.optimizer import Slice
from experiments.faults.catalogue.registry import declare

GROUP = "tied-embedding"


def not_summed_over_ends(original: Callable[[Tensor, Mesh], None], grad: Tensor, mesh: Mesh) -> None:
    """Gradients of the embedding and of the head tied to it are never added."""


declare(
    "F027",
    "Gradients of tied embeddings not summed over the ends",
    group=GROUP,
    source="NVIDIA/Megatron-LM#656",
    patches={"optimizer.sum_over_ends": not_summed_over_ends},
    workload="tied",
    layout={"pp": 2},
)


def copy_by_another_optimizer(
    original: Callable[..., None], state: Slice, gradient: Tensor, rate: float, step: int, config: TrainerConfig
) -> None:
    """The copy of the embedding on the last stage, the one weight no norm counts there, is updated without Adam."""
    copy = not bool(state.counted.any())
    original(state, gradient, rate, step, config.model_copy(update={"optimizer": "sgd"}) if copy else config)


declare(
    "F028",
    "Copy of the embedding updated by another optimizer",
    group=GROUP,
    source="NVIDIA/Megatron-LM#4641",
    patches={"optimizer.update": copy_by_another_optimizer},
    workload="mtp",
    layout={"pp": 2},
    note="The report has Muon for the copy and Adam for the original; here it is plain gradient descent.",
)
