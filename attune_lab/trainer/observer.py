"""Collects what the layers see during a step, for the gate and for the log."""

from __future__ import annotations

import torch
from torch import Tensor

from attune_lab.trainer.injection import injection_point


class Observer:
    """What the forward passes of one step showed on one rank.

    Attributes:
        watching: whether weights are compared with what the optimizer stored.
        load: tokens per expert by (layer, micro-batch), summed over this rank's tokens, shape (E,).
        dropped: token-expert pairs not computed, by (layer, micro-batch).
        metrics: sums of auxiliary losses by (name, layer, micro-batch).
        stale: parameters whose value in a forward was not the stored one.
        counts: choices per expert by layer and micro-batch, for the global load-balancing loss.
    """

    def __init__(self, *, watching: bool = False) -> None:
        self.watching = watching
        self.load: dict[tuple[str, int], Tensor] = {}
        self.dropped: dict[tuple[str, int], int] = {}
        self.metrics: dict[tuple[str, str, int], float] = {}
        self.stale: set[str] = set()
        self.counts: dict[str, dict[int, Tensor]] = {}

    def weight_used(self, name: str, parameter: Tensor, used: Tensor) -> None:
        """Compares what a product computes with against what is stored."""
        watched = self.watching and name not in self.stale and used is not parameter
        if watched and not torch.equal(used.detach(), parameter.detach()):
            self.stale.add(name)

    def metric(self, name: str, layer: str, microbatch: int, value: Tensor) -> None:
        """Notes an auxiliary loss; a recomputed layer notes the same one again."""
        record(self.metrics, (name, layer, microbatch), float(value.detach()))

    def load_of(self, layer: str) -> Tensor:
        """Tokens per expert of one layer over this rank's micro-batches, shape (E,)."""
        return torch.stack([load for (name, _), load in self.load.items() if name == layer]).sum(0)

    def total(self, name: str) -> float:
        """The sum of an auxiliary loss over layers and micro-batches."""
        return sum(value for key, value in self.metrics.items() if key[0] == name)


@injection_point
def record(metrics: dict[tuple[str, str, int], float], key: tuple[str, str, int], value: float) -> None:
    """Keeps one value per layer and micro-batch, however often the layer runs."""
    metrics[key] = value
