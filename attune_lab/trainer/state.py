"""Everything a run holds between steps, and how it is saved for any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.contracts import UserError
from attune_lab.trainer.buckets import make_buckets
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.model import Chunk
from attune_lab.trainer.optimizer import Optimizer
from attune_lab.trainer.pipeline import Pipeline
from attune_lab.trainer.router import Router
from attune_lab.trainer.weights import Builder

Checkpoint = dict[str, Any]
"""``step``, and ``weights``, ``mean``, ``square``: full float32 tensors by parameter name, routers' biases as well."""


@dataclass
class State:
    """A run on one rank.

    Attributes:
        config, mesh: of the run.
        pipeline: its chunks and their order of work.
        optimizer: buckets, masters and moments.
        step: steps done.
        names: of all parameters of the model, the same ordered list on all ranks.
    """

    config: TrainerConfig
    mesh: Mesh
    pipeline: Pipeline
    optimizer: Optimizer
    step: int
    names: list[str]

    @property
    def routers(self) -> dict[str, Router]:
        """The routers of this rank by the name of their layer."""
        found = (m for chunk in self.pipeline.chunks for m in chunk.modules())
        return {m.layer: m for m in found if isinstance(m, Router)}


def make_state(config: TrainerConfig, mesh: Mesh, start: Checkpoint | None = None) -> State:
    """A run at its first step, or where a checkpoint left it.

    A checkpoint at step 0 gives weights only: a seed that every layout starts from.

    Raises:
        UserError: the checkpoint is of another model.
    """
    weights: Mapping[str, Tensor] = start["weights"] if start else {}
    build = Builder(config, mesh, weights)
    chunks = [Chunk(c * config.pp + mesh.pp.rank, build) for c in range(config.vpp)]
    optimizer = Optimizer(make_buckets(chunks, config, mesh), config, mesh)
    pipeline = Pipeline(chunks, mesh.pp, config.schedule)
    state = State(config, mesh, pipeline, optimizer, 0, _all_names(optimizer, mesh))
    if start:
        _load(state, start)
    return state


def _all_names(optimizer: Optimizer, mesh: Mesh) -> list[str]:
    own = [member.spec.name for bucket in optimizer.buckets for member in bucket.members]
    if mesh.world.size == 1:
        return sorted(own)
    gathered: list[list[str]] = [[] for _ in range(mesh.world.size)]
    dist.all_gather_object(gathered, own, group=mesh.world.group)
    return sorted({name for names in gathered for name in names})


@injection_point
def restored(start: Checkpoint, config: TrainerConfig) -> Checkpoint:
    """What a resumed run takes from a checkpoint."""
    return start


def _load(state: State, start: Checkpoint) -> None:
    """Masters, moments and counters of this rank's slices."""
    start = restored(start, state.config)
    state.step = state.optimizer.steps = int(start["step"])
    for bucket, own in zip(state.optimizer.buckets, state.optimizer.slices, strict=True):
        for member, inside, part in bucket.owned():
            for target, key in ((own.master, "weights"), (own.mean, "mean"), (own.square, "square")):
                full = start[key].get(member.spec.name) if state.step or key == "weights" else None
                if full is not None:
                    values = member.spec.local(full).flatten()[part].float()
                    target[inside] = values if state.step else values.to(bucket.weights.dtype).float()


def checkpoint(state: State) -> Checkpoint:
    """The state in full tensors, equal on every rank; collective."""
    saved: Checkpoint = {"step": state.step, "weights": {}, "mean": {}, "square": {}}
    for key, attribute in (("weights", "master"), ("mean", "mean"), ("square", "square")):
        saved[key] = _full(state, attribute)
    for layer, router in state.routers.items():
        saved["weights"][f"{layer}.router.bias"] = router.bias.clone()
    if state.mesh.world.size > 1 and state.config.num_experts:
        gathered: list[dict[str, Tensor]] = [{} for _ in range(state.mesh.world.size)]
        biases = {k: v for k, v in saved["weights"].items() if k.endswith(".router.bias")}
        dist.all_gather_object(gathered, biases, group=state.mesh.world.group)
        for part in gathered:
            saved["weights"].update(part)
    return saved


def _full(state: State, attribute: str) -> dict[str, Tensor]:
    """One part of the optimizer state as full tensors by name: every element from the rank that counts it."""
    shapes: dict[str, tuple[int, ...]] = {}
    parts: dict[str, Tensor] = {}
    for bucket, own in zip(state.optimizer.buckets, state.optimizer.slices, strict=True):
        values: Tensor = getattr(own, attribute)
        for member, inside, part in bucket.owned():
            name = member.spec.name
            shapes[name] = member.spec.shape
            flat = parts.setdefault(name, torch.zeros(torch.Size(member.spec.shape).numel()))
            flat[member.spec.index()[part]] += values[inside] * own.counted[inside]
    if state.mesh.world.size > 1:
        gathered: list[dict[str, tuple[int, ...]]] = [{} for _ in range(state.mesh.world.size)]
        dist.all_gather_object(gathered, shapes, group=state.mesh.world.group)
        shapes = {name: shape for part in gathered for name, shape in part.items()}
    full = {}
    for name in state.names:
        flat = parts.get(name, torch.zeros(torch.Size(shapes[name]).numel()))
        if state.mesh.world.size > 1:
            dist.all_reduce(flat, group=state.mesh.world.group)
        full[name] = flat.view(shapes[name])
    return full


def save(saved: Checkpoint, path: Path) -> None:
    """Writes a checkpoint, whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save(saved, partial)
    partial.replace(path)


def load(path: Path) -> Checkpoint:
    """The checkpoint in a file; only tensors and plain values are read.

    Raises:
        UserError: no checkpoint there.
    """
    try:
        saved: Checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # zip, pickle and torch each raise kinds of their own
        what = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: is no checkpoint of the trainer ({what}).") from error
    if not isinstance(saved, dict) or not {"step", "weights", "mean", "square"} <= saved.keys():
        raise UserError(f"{path}: is no checkpoint of the trainer; write one with the trainer.")
    return saved
