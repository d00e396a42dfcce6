"""Short experiments beside a run that show faults which its own steps hide.

Before the first step, on its weights: gradients under ragged masks and packed documents, with the auxiliary loss
magnified, and with attention sharpened; the first step's gradients a second time, and what a change of one token may
move. After the last step: the last step again from a checkpoint, and one step of plain gradient descent with
clipping.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.signals.schema import Probe, StepSignals
from attune_lab.trainer import communication as comm
from attune_lab.trainer import state as states
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import make_context
from attune_lab.trainer.data import Batch, load
from attune_lab.trainer.observer import Observer
from attune_lab.trainer.recording import Recorder
from attune_lab.trainer.state import State
from attune_lab.trainer.step import compute_gradients, run_step

RESUMED_STEPS = 1
MAGNIFIED = 100.0
"""Factor on the auxiliary coefficient."""
SHARP = 2.0
"""Standard deviation of the scores of sharpened attention."""
SGD_RATE = 1.0
"""Large, so that rounding of the weights is small beside the update."""

CONDITIONS: dict[str, Callable[[TrainerConfig], dict[str, Any]]] = {
    "ragged": lambda _: {"ragged": True, "packed": True},
    "aux": lambda config: {"aux_loss_coeff": MAGNIFIED * config.aux_loss_coeff},
    "attention": lambda _: {"packed": True},
}
"""Settings under which a probe computes one step's gradients."""


class Probes:
    """The probes of one run.

    Args:
        state, recorder: of the run.
        names: which; those that say nothing about this model are left out.

    Attributes:
        found: what they showed so far, by name.
    """

    def __init__(self, state: State, recorder: Recorder, names: Sequence[str]) -> None:
        self.state, self.recorder = state, recorder
        self.names = [name for name in names if applies(name, state)]
        self.found: dict[str, Probe] = {}
        self._again: StepSignals | None = None
        self._saved: states.Checkpoint | None = None

    def before(self) -> None:
        """Those that look at the weights a run starts from; the state stays as it is."""
        for name, changed in CONDITIONS.items():
            if name in self.names:
                with sharpened(self.state) if name == "attention" else nullcontext():
                    self.found[name] = self._under(**changed(self.state.config))
        if "perturbation" in self.names:
            self.found["perturbation"] = _perturbation(self.state)
        if "repeat" in self.names:
            self._again = self.recorder.gradients(compute_gradients(self.state))

    def _under(self, **changed: object) -> Probe:
        """Gradients of the next step under changed settings."""
        other = replace(self.state, config=self.state.config.model_copy(update=changed))
        return Probe(cost_steps=1.0, step=self.recorder.gradients(compute_gradients(other)))

    def at(self, step: int) -> None:
        """Keeps what the resume probe goes on from, when this is the step to do so."""
        if "resume" in self.names and step == self.state.config.train_iters - RESUMED_STEPS + 1:
            self._saved = states.checkpoint(self.state)

    def after(self, first: StepSignals | None, losses: Sequence[float]) -> None:
        """Those that need the finished run; it cannot go on afterwards.

        Args:
            first: the record of the first step.
            losses: of all steps.
        """
        if self._again is not None and first is not None:
            self.found["repeat"] = Probe(cost_steps=1.0, figures={"difference": _difference(self._again, first)})
        if self._saved is not None:
            self.found["resume"] = _resume(self.state, self._saved, losses)
        if "sgd" in self.names:
            self.found["sgd"] = _sgd(self.state)


PROBES = ("ragged", "aux", "attention", "repeat", "perturbation", "resume", "sgd")


def applies(name: str, state: State) -> bool:
    """Whether a probe says anything about this model."""
    config = state.config
    balanced = config.num_experts > 0 and config.lb_type != "none"
    return name != "aux" or (balanced and config.aux_loss_coeff > 0)


@contextmanager
def sharpened(state: State) -> Iterator[None]:
    """Queries and keys longer than they are drawn, so that attention chooses; the weights are put back at the end.

    Drawn weights give scores near 0: attention is the mean over what it may see, and positions and scales are lost in
    rounding. A score has the spread of the product of a query's and a key's components, ``std^2 x hidden`` here.
    """
    config = state.config
    spread = 1.0 if config.qk_layernorm else config.init_method_std**2 * config.hidden
    names = (".query_norm", ".key_norm") if config.qk_layernorm else (".query", ".key")
    members = (member for bucket in state.optimizer.buckets for member in bucket.members)
    longer = [member.parameter.detach() for member in members if member.spec.name.endswith(names)]
    drawn = [weight.clone() for weight in longer]
    for weight in longer:
        weight.mul_(math.sqrt(SHARP / spread))
    try:
        yield
    finally:
        for weight, before in zip(longer, drawn, strict=True):
            weight.copy_(before)


def _perturbation(state: State) -> Probe:
    """By how much losses move that must not: relative, over one micro-batch of packed, ragged sequences."""
    other = replace(state, config=state.config.model_copy(update={"ragged": True, "packed": True}))
    batch = load(other.config, state.step + 1, state.mesh.dp.rank, 0)
    plain, middle = _token_losses(other, batch), state.config.seq_len // 2
    figures = {}
    future = _token_losses(other, batch._replace(tokens=_shifted(batch.tokens, slice(middle, None), state)))
    figures["future"] = _moved(plain, future, torch.arange(plain.shape[1]) < middle)
    first = batch.documents == batch.documents[:, :1]
    changed = torch.where(first, _shifted(batch.tokens, slice(None), state), batch.tokens)
    figures["document"] = _moved(plain, _token_losses(other, batch._replace(tokens=changed)), ~first)
    labels = torch.where(batch.mask > 0, batch.labels, _shifted(batch.labels, slice(None), state))
    masked = _token_losses(other, batch._replace(labels=labels))
    figures["masked"] = _moved(plain, masked, batch.mask > 0)
    return Probe(cost_steps=4 / 3 / state.config.microbatches, figures=figures)


def _shifted(ids: Tensor, where: slice, state: State) -> Tensor:
    """Token ids, every one of some positions replaced by another."""
    ids = ids.clone()
    ids[:, where] = (ids[:, where] + 1) % state.config.vocab_size
    return ids


def _token_losses(state: State, batch: Batch) -> Tensor:
    """Loss of every token of a micro-batch in the order of the sequence, shape (B, S), on every rank of a replica."""
    context = make_context(state.config, state.mesh, batch, Observer(), step=state.step + 1)
    losses = torch.zeros(batch.tokens.shape)
    for found in state.pipeline.losses([context], (1.0, 1.0)):
        losses[:, context.own] = found.tokens.T
    return comm.all_reduce(comm.all_reduce(losses, state.mesh.cp), state.mesh.pp)


def _moved(plain: Tensor, other: Tensor, still: Tensor) -> float:
    """Largest relative change where ``still`` is true; 0 where nothing is."""
    moved = ((other - plain).abs() / plain.abs().clamp(min=1e-6))[still.expand_as(plain)]
    return float(moved.max()) if moved.numel() else 0.0


def _difference(again: StepSignals, first: StepSignals) -> float:
    """Largest relative difference of two records of the same gradients, over loss and sketches."""
    worst = abs(again.loss - first.loss) / abs(first.loss)
    for name, sketch in first.grad_sketch.items():
        size = max(map(abs, sketch)) or 1.0
        worst = max([worst, *(abs(a - b) / size for a, b in zip(again.grad_sketch[name], sketch, strict=True))])
    return worst


def _resume(state: State, saved: states.Checkpoint, losses: Sequence[float]) -> Probe:
    """By how much the last steps, run again from a checkpoint, differ in loss and in the weights they end with."""
    other = states.make_state(state.config, state.mesh, saved)
    again = [run_step(other).printed["lm loss"] for _ in range(RESUMED_STEPS)]
    loss = max(abs(a - b) / abs(b) for a, b in zip(again, losses[-RESUMED_STEPS:], strict=True))
    pairs = zip(other.optimizer.slices, state.optimizer.slices, strict=True)
    furthest = torch.tensor(max(float((a.master - b.master).abs().max()) for a, b in pairs))
    weights = float(comm.all_reduce(furthest, state.mesh.world, dist.ReduceOp.MAX))
    return Probe(cost_steps=float(RESUMED_STEPS), figures={"loss": loss, "weights": weights})


def _sgd(state: State) -> Probe:
    """Gradient descent with clipping at half the norm: every update must be rate x clip factor x gradient.

    ``ratio`` is the one farthest from 1 over parameters; ``clip_difference`` how far the applied factor is from
    clip / norm.
    """
    norm = state.optimizer.grad_norm()
    settings = {"optimizer": "sgd", "clip_grad": norm / 2, "lr": SGD_RATE, "min_lr": SGD_RATE, "lr_warmup_iters": 0}
    config = state.config.model_copy(update={**settings, "lr_decay_style": "constant"})
    optimizer = copy.copy(state.optimizer)
    optimizer.config = config
    optimizer.slices = [
        replace(s, decay=torch.zeros_like(s.decay), rate=torch.ones_like(s.rate)) for s in optimizer.slices
    ]
    seen = Recorder(replace(state, config=config, optimizer=optimizer)).step()
    total = math.sqrt(sum(n**2 for n in seen.grad_norm.values()))
    factor = min(1.0, config.clip_grad / total)
    ratios = [seen.update_norm[n] / (SGD_RATE * factor * g) for n, g in seen.grad_norm.items() if g > 1e-9 * total]
    clip = abs((seen.clip_factor or 0.0) / factor - 1)
    return Probe(cost_steps=1.0, figures={"ratio": max(ratios, key=lambda r: abs(r - 1)), "clip_difference": clip})
