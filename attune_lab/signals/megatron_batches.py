"""What the micro-batches of one step of a Megatron run add up to: samples, tokens, losses and the load of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from attune_lab.signals import record
from attune_lab.signals.megatron_layout import Groups, rank_in, renamed, union

LOSS = "lm loss"
"""Name of the loss in what Megatron's loss function reports."""


class Batches:
    """Notes micro-batches while it is watching."""

    def __init__(self, model: Sequence[nn.Module], groups: Groups) -> None:
        self._model, self._groups, self._watching = model, groups, False
        self._routers = dict(_routers(model))
        experts = {(key, int(router.config.num_moe_experts)) for key, router in self._routers.items()}
        self._layers = union(experts, (groups.pp,))
        self._rows: dict[str, list[int]] = {"samples": [], "labels": [], "positions": []}
        self._sums, self._load = Tensor(), dict[str, Tensor]()
        self._handles = [r.register_forward_hook(partial(self._on_router, k)) for k, r in self._routers.items()]

    def watch(self) -> None:
        """Starts a step."""
        self._watching = True
        self._rows = {"samples": [], "labels": [], "positions": []}
        self._sums, self._load = torch.zeros(4, dtype=torch.float64), {}

    def stop(self) -> None:
        """Ends watching; what was noted stays."""
        self._watching = False

    def detach(self) -> None:
        """Takes the hooks of the routers away."""
        for handle in self._handles:
            handle.remove()

    def forward_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Megatron's forward step, its batches and losses noted. Arguments and results are passed on."""

        @wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            if not self._watching:
                return function(*arguments, **named)
            reads = self._reads_data() and any(argument is self._model[0] for argument in arguments)
            watched = [self._noted(a) if reads and hasattr(a, "__next__") else a for a in arguments]
            output, loss_function = function(*watched, **named)
            return output, partial(self._on_loss, loss_function)

        return noted

    def summed(self) -> dict[str, Any]:
        """Fields of `StepSignals`, over all ranks. Collective."""
        world = self._groups.world
        hashes = {field: record.multiset_hash(rows, world) for field, rows in self._rows.items()}
        rows = {"step": torch.cat([self._sums, torch.tensor([float(len(self._rows["samples"]))])])}
        tokens, loss, loss_tokens, routed, sequences = record.additive(rows, ["step"], 5, world)["step"]
        load: dict[str, list[float]] = {}
        for key, experts in self._layers:
            load |= record.additive({k: t for k, t in self._load.items() if k == key}, [key], experts, world)
        return hashes | {
            "loss": loss / loss_tokens if loss_tokens else float("nan"),
            "tokens": round(tokens),
            "sequences": round(sequences),
            "expert_load": {key: tuple(map(round, counts)) for key, counts in load.items()},
            "dropped": round(routed - sum(sum(counts) for counts in load.values())),
        }

    def _reads_data(self) -> bool:
        """One rank of those that are given the same sequences: Megatron cuts them for context parallelism later."""
        groups = self._groups
        return rank_in(groups.pp) == rank_in(groups.tp) == rank_in(groups.cp) == 0

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if isinstance(batch, Mapping) and "tokens" in batch:
                self._note(batch)
            yield batch

    def _note(self, batch: Mapping[str, Tensor]) -> None:
        tokens, mask = batch["tokens"], batch["loss_mask"]
        self._rows["samples"] += record.row_hashes(tokens)
        self._rows["labels"] += record.row_hashes(tokens, batch["labels"], mask)
        if "position_ids" in batch:
            self._rows["positions"] += record.row_hashes(tokens, batch["position_ids"])
        self._sums[0] += mask.sum(dtype=torch.float64).cpu()

    def _on_loss(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The loss function reports the sum of the losses and their number, or in older releases their mean."""
        result = original(*arguments, **named)
        report = result[-1] if isinstance(result, tuple) else None
        if isinstance(report, Mapping) and LOSS in report and rank_in(self._groups.tp) == 0:
            value = torch.as_tensor(report[LOSS]).detach().double().reshape(-1).cpu()
            self._sums[1] += value[0]
            self._sums[2] += value[1] if len(value) == 2 else 1.0
        return result

    def _on_router(self, key: str, router: Any, arguments: Any, output: Any) -> None:
        """Counts a forward once: where activations are recomputed, the first is run without gradients.

        Without sequence parallelism all tensor-parallel ranks route the same tokens.
        """
        same_tokens = not getattr(router.config, "sequence_parallel", False) and rank_in(self._groups.tp) > 0
        if not self._watching or same_tokens or not torch.is_grad_enabled():
            return
        chosen = output[1].detach()
        counts = chosen.sum(0, dtype=torch.float64).cpu()
        self._load[key] = self._load.get(key, torch.zeros_like(counts)) + counts
        self._sums[3] += chosen.shape[0] * router.topk


def _routers(model: Sequence[nn.Module]) -> Iterator[tuple[str, Any]]:
    """Routers of the chunks by layer: ``layers.N``, or ``mtp.N``."""
    for chunk in model:
        for name, module in chunk.named_modules():
            if name.endswith(".mlp.router"):
                whole = renamed(name + ".")
                decoder = whole.startswith("layers.")
                yield f"layers.{module.layer_number - 1}" if decoder else whole.removesuffix(".router."), module
