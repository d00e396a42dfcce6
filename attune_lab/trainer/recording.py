"""What the gate wants to see of a step, read from the trainer's tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.signals import record
from attune_lab.signals.schema import StepSignals
from attune_lab.trainer import communication as comm
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.state import State
from attune_lab.trainer.step import Gradients, auxiliary_losses, compute_gradients, finish_step, layer_loads, printed


class Recorder:
    """Records steps of a run; every method is collective.

    Args:
        state: of the run.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._index: dict[tuple[int, str], Tensor] = {}

    def step(self) -> StepSignals:
        """Trains one step and records it."""
        state = self.state
        gradients = compute_gradients(state, watching=True)
        seen = self.gradients(gradients)
        before = [record.Piece(p.name, p.values.clone(), p.index) for p in self._pieces("master")]
        finish_step(state, gradients)
        changed = record.changes(before, self._pieces("master"), state.names, state.mesh.world.group)
        given = comm.all_reduce(torch.tensor(state.optimizer.given), state.mesh.world)
        for bucket in state.optimizer.buckets:
            bucket.finish_gather()
        norm = math.sqrt(sum(n**2 for n in seen.grad_norm.values()))
        return seen.model_copy(
            update={
                "logged": printed(state, gradients),
                "update_norm": {name: change.update_norm for name, change in changed.items()},
                "weight_norm": {name: change.weight_norm for name, change in changed.items()},
                "unchanged": {name: change.unchanged for name, change in changed.items()},
                "clip_factor": math.sqrt(float(given)) / norm if norm > 0 else None,
                "replicas": self._everywhere(self._differing_replicas(gradients)),
                "stale": self._everywhere([*gradients.observer.stale, *self._not_stored()]),
                "skipped": all(change.unchanged == 1 for change in changed.values()),
            }
        )

    def gradients(self, gradients: Gradients) -> StepSignals:
        """The record of passes without an update."""
        state = self.state
        dp, batches = state.mesh.dp.group, gradients.batches
        totals = record.totals(self._pieces("reduced"), state.names, state.mesh.world.group)
        hashes: dict[str, list[int]] = {"samples": [], "labels": [], "positions": []}
        for b in batches:
            hashes["samples"] += record.row_hashes(b.tokens)
            hashes["labels"] += record.row_hashes(b.tokens, b.labels, b.mask, b.next_labels, b.next_mask)
            hashes["positions"] += record.row_hashes(b.tokens, b.positions, b.documents)
        counts = torch.tensor([sum(len(b.tokens) for b in batches), sum(int(b.mask.sum()) for b in batches)])
        sequences, tokens = comm.all_reduce(counts, state.mesh.dp).tolist()
        return StepSignals(
            step=gradients.contexts[0].step,
            loss=self._loss(gradients, tokens),
            tokens=tokens,
            sequences=sequences,
            grad_norm={name: norm for name, (norm, _) in totals.items()},
            grad_sketch={name: sketch for name, (_, sketch) in totals.items()},
            expert_load=self._loads(gradients),
            dropped=self._dropped(gradients),
            aux_loss=auxiliary_losses(state, gradients.observer),
            samples=record.multiset_hash(hashes["samples"], dp),
            labels=record.multiset_hash(hashes["labels"], dp),
            positions=record.multiset_hash(hashes["positions"], dp),
        )

    def _pieces(self, what: str) -> Iterator[record.Piece]:
        """Gradients (``reduced``) or masters this rank counts, with their places in the full parameters."""
        optimizer = self.state.optimizer
        for number, (bucket, own) in enumerate(zip(optimizer.buckets, optimizer.slices, strict=True)):
            values = own.master if what == "master" else bucket.reduced
            for member, inside, part in bucket.owned():
                if own.counted[inside.start]:
                    key = number, member.spec.name
                    if key not in self._index:
                        self._index[key] = member.spec.index()[part].clone()
                    yield record.Piece(member.spec.name, values[inside], self._index[key])

    def _loss(self, gradients: Gradients, tokens: int) -> float:
        """Mean loss of the unmasked tokens, from the losses of all tokens in float64."""
        total = torch.zeros((), dtype=torch.float64)
        if self.state.mesh.tp.rank == 0:
            for losses, context in zip(gradients.losses, gradients.contexts, strict=False):
                total += (losses.tokens.double() * context.batch.mask[:, context.own].T).sum()
        return float(comm.all_reduce(total, self.state.mesh.world)) / max(tokens, 1)

    def _loads(self, gradients: Gradients) -> dict[str, tuple[int, ...]]:
        own = {name: tuple(load.tolist()) for name, load in layer_loads(self.state, gradients.observer).items()}
        return {name: load for part in self._gathered(own) for name, load in part.items()}

    def _dropped(self, gradients: Gradients) -> int:
        own = torch.tensor(sum(gradients.observer.dropped.values()))
        return int(comm.all_reduce(own, self.state.mesh.world))

    def _differing_replicas(self, gradients: Gradients) -> list[str]:
        """Copies of weights and batches that are not equal, as 'AXIS: name'."""
        mesh = self.state.mesh
        groups: dict[str, tuple[Axis, dict[str, Tensor]]] = {
            "dp": (mesh.replicas, {}), "edp": (mesh.edp, {}), "tp": (mesh.tp, {}), "ends": (mesh.ends, {}),
        }  # fmt: skip
        optimizer = self.state.optimizer
        for bucket, own in zip(optimizer.buckets, optimizer.slices, strict=True):
            for member in bucket.members:
                groups["edp" if member.spec.expert else "dp"][1][member.spec.name] = member.parameter
            for member, inside, _ in bucket.owned():
                name, master = member.spec.name, own.master[inside]  # bfloat16 weights hide small differences
                if not self.state.config.use_distributed_optimizer:
                    groups["edp" if member.spec.expert else "dp"][1][name] = master
                if not member.spec.expert and mesh.tp not in [axis for _, axis in member.spec.shards]:
                    groups["tp"][1][name] = master
                if name == "embedding" and optimizer.copies_embedding:
                    groups["ends"][1][name] = master
        for layer, router in self.state.routers.items():
            for axis in ("dp", "tp"):
                groups[axis][1][f"{layer}.router.bias"] = router.bias
        for axis in ("tp", "cp", "pp"):
            inputs = {"batch": torch.cat([b.tokens for b in gradients.batches])}
            groups[f"{axis} input"] = getattr(mesh, axis), inputs
        return [
            text for label, (axis, tensors) in groups.items() if axis.size > 1
            for text in record.replica_differences(tensors, axis.group, label)
        ]  # fmt: skip

    def _not_stored(self) -> list[str]:
        """Parameters whose weights are not what their masters say."""
        optimizer = self.state.optimizer
        return [
            member.spec.name
            for bucket, own in zip(optimizer.buckets, optimizer.slices, strict=True)
            for member, inside, part in bucket.owned()
            if not torch.equal(
                own.master[inside].to(bucket.weights.dtype), member.parameter.detach().flatten()[part]
            )
        ]  # fmt: skip

    def _everywhere(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The texts of all ranks, each once."""
        return tuple(sorted({text for part in self._gathered(list(texts)) for text in part}))

    def _gathered(self, value: Any) -> list[Any]:
        world = self.state.mesh.world
        if world.size == 1:
            return [value]
        gathered: list[Any] = [None] * world.size
        dist.all_gather_object(gathered, value, group=world.group)
        return gathered
