"""One optimizer step: read the batch, run the pipeline, reduce, clip, update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context, make_context
from attune_lab.trainer.data import Batch, load
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.model import Losses
from attune_lab.trainer.observer import Observer
from attune_lab.trainer.optimizer import learning_rate
from attune_lab.trainer.router import load_of_step, update_bias
from attune_lab.trainer.state import State


@dataclass(frozen=True)
class Gradients:
    """What the passes of one step left behind, before the update; sums over the global batch.

    Attributes:
        batches: this rank's micro-batches.
        contexts: the same with what the layers knew of them.
        losses: by micro-batch, on the last stage.
        observer: what its layers saw.
        loss: mean loss of the unmasked tokens.
        mtp_loss: the same for the MTP module, nan without one.
        tokens: unmasked tokens.
        norm: norm of the gradients.
    """

    batches: Sequence[Batch]
    contexts: Sequence[Context]
    losses: Sequence[Losses]
    observer: Observer
    loss: float
    mtp_loss: float
    tokens: int
    norm: float


@dataclass(frozen=True)
class Outcome:
    """What one step did.

    Attributes:
        gradients: before the update.
        printed: the figures of the log line, by the log's names.
        clip_factor: what gradients were multiplied by; nan where the update was left out.
    """

    gradients: Gradients
    printed: dict[str, float]
    clip_factor: float


def run_step(state: State, *, watching: bool = False) -> Outcome:
    """Trains one step.

    Args:
        state: changed in place.
        watching: compare the weights that forwards use with the stored ones.
    """
    gradients = compute_gradients(state, watching=watching)
    factor = finish_step(state, gradients)
    return Outcome(gradients, printed(state, gradients), factor)


def compute_gradients(state: State, *, watching: bool = False) -> Gradients:
    """Forward and backward passes of the next step; the gradients are summed over replicas."""
    config, step = state.config, state.step + 1
    observer = Observer(watching=watching)
    batches = [load(config, step, state.mesh.dp.rank, i) for i in range(microbatches(state))]
    totals = token_totals(batches, state)
    contexts = [make_context(config, state.mesh, b, observer, step=step, microbatch=i) for i, b in enumerate(batches)]
    for bucket in state.optimizer.buckets:
        bucket.finish_gather()
        bucket.zero(len(batches))
    losses = state.pipeline.run(contexts, totals)
    state.optimizer.reduce()
    loss, mtp = mean_losses(losses, contexts, totals, state)
    return Gradients(batches, contexts, losses, observer, loss, mtp, round(totals[0]), state.optimizer.grad_norm())


@injection_point
def microbatches(state: State) -> int:
    """Micro-batches of this step."""
    return state.config.microbatches


@injection_point
def token_totals(batches: Sequence[Batch], state: State) -> tuple[float, float]:
    """Unmasked tokens of the global batch, for the language model and for MTP."""
    own = torch.tensor([sum(float(b.mask.sum()) for b in batches), sum(float(b.next_mask.sum()) for b in batches)])
    total = comm.all_reduce(own.double(), state.mesh.dp)
    return float(total[0]), float(total[1])


@injection_point
def mean_losses(
    losses: Sequence[Losses], contexts: Sequence[Context], totals: tuple[float, float], state: State
) -> tuple[float, float]:
    """Mean loss per unmasked token of the global batch, of the language model and of MTP, on every rank."""
    sums = torch.zeros(2, dtype=torch.float64)
    if state.mesh.tp.rank == 0:  # tensor-parallel ranks hold the same losses
        sums += torch.tensor([[float(x.summed), float(x.mtp)] for x in losses], dtype=torch.float64).view(-1, 2).sum(0)
    sums = comm.all_reduce(sums, state.mesh.world)
    mtp = float(sums[1]) / max(totals[1], 1.0) if state.config.mtp_num_layers else math.nan
    return float(sums[0]) / max(totals[0], 1.0), mtp


@injection_point
def finish_step(state: State, gradients: Gradients) -> float:
    """Updates the weights and the routers' biases; the factor gradients were clipped with."""
    factor = apply_update(state, gradients.norm)
    if state.config.expert_bias:
        for layer, load in layer_loads(state, gradients.observer).items():
            router = state.routers[layer]
            router.bias.copy_(update_bias(router.bias, load, state.config.bias_update_rate))
    state.step += 1
    return factor


@injection_point
def apply_update(state: State, norm: float) -> float:
    """The optimizer's update; the factor gradients were clipped with."""
    return state.optimizer.step(norm)


def layer_loads(state: State, observer: Observer) -> dict[str, Tensor]:
    """Tokens per expert of the whole step, by this stage's layers."""
    layers = sorted({layer for layer, _ in observer.load})
    return {name: load_of_step(observer.load_of(name), state.mesh.stage) for name in layers}


@injection_point
def printed(state: State, gradients: Gradients) -> dict[str, float]:
    """The figures of the log line."""
    figures = {"learning rate": learning_rate(state.step, state.config), "lm loss": gradients.loss}
    if state.config.mtp_num_layers:
        figures["mtp_1 loss"] = gradients.mtp_loss
    figures |= auxiliary_losses(state, gradients.observer)
    return figures | {"grad norm": gradients.norm}


def auxiliary_losses(state: State, observer: Observer) -> dict[str, float]:
    """Auxiliary losses of the global batch, mean over layers, by the log's names."""
    moe = state.config.num_experts > 0
    balanced = moe and state.config.lb_type != "none" and state.config.aux_loss_coeff > 0
    kinds = {"load_balancing_loss": balanced, "z_loss": moe and state.config.z_loss_coeff > 0}
    names = [name for name, on in kinds.items() if on]
    own = torch.tensor([observer.total(name) for name in names], dtype=torch.float64)
    if not state.config.sequence_parallel and state.mesh.tp.rank:
        own = own * 0  # tensor-parallel ranks saw the same tokens
    total = comm.all_reduce(own, state.mesh.world)
    return {name: float(x) / state.config.num_layers for name, x in zip(names, total, strict=True)}
