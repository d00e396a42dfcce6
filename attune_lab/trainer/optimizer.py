"""The end of a step: gradients of shared weights, clipping, and the update of float32 masters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer.buckets import Bucket, Member
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.weights import Spec


class Optimizer:
    """Adam or SGD over the own slices of the buckets.

    Attributes:
        buckets: of this rank.
        slices: the float32 state of each bucket's own slice.
        steps: updates so far.
        given: sum of squares of the gradients given to the last update, of the elements this rank counts.
    """

    def __init__(self, buckets: Sequence[Bucket], config: TrainerConfig, mesh: Mesh) -> None:
        self.buckets, self.config, self.mesh = buckets, config, mesh
        self.slices = [Slice.of(bucket, config, mesh) for bucket in buckets]
        self.steps = 0
        self.given = 0.0

    def reduce(self) -> None:
        """Makes the gradients of this step whole: sums over replicas, tp and the ends of the pipeline."""
        for bucket in self.buckets:
            bucket.finish_reduction()
        for bucket in self.buckets:
            for member, inside, _ in bucket.owned():
                if member.spec.summed_over_tp:
                    sum_over_tp(bucket.reduced[inside], member.spec, self.mesh)
        for bucket in self.buckets:
            for member, inside, _ in bucket.owned():
                if member.spec.name == "embedding" and self.mesh.ends.size > 1 and self.copies_embedding:
                    sum_over_ends(bucket.reduced[inside], self.mesh)

    @property
    def copies_embedding(self) -> bool:
        """Whether the last stage has a copy of the embedding."""
        return not self.config.untie_embeddings or self.config.mtp_num_layers > 0

    def grad_norm(self) -> float:
        """The norm of all gradients of the model."""
        squares = torch.zeros((), dtype=torch.float64)
        for bucket, state in zip(self.buckets, self.slices, strict=True):
            squares += squared_norm(bucket.reduced, state.counted, bucket)
        return math.sqrt(summed_squares(squares, self.mesh, self.config))

    def step(self, norm: float) -> float:
        """Clips, updates the masters and the weights; the factor the gradients were multiplied by."""
        self.steps += 1
        factor = clip_factor(norm, self.config)
        rate = learning_rate(self.steps, self.config)
        self.given = 0.0
        for bucket, state in zip(self.buckets, self.slices, strict=True):
            gradient = clipped(bucket.reduced.float(), factor, bucket)
            self.given += float((gradient.double().square() * state.counted).sum())
            update(state, gradient, rate, self.steps, self.config)
            store(bucket.weights[bucket.own], state)
            bucket.start_gather()
            if not self.config.overlap_param_gather:
                bucket.finish_gather()
        return factor


@dataclass
class Slice:
    """Optimizer state of one bucket's own slice; all float32 and of its length.

    Attributes:
        master: the weights.
        mean, square: Adam's moments.
        decay: weight decay per element.
        rate: learning rate per element over that of the schedule.
        counted: 1 where this rank counts the element in norms, 0 where another rank does (copies) or padding.
    """

    master: Tensor
    mean: Tensor
    square: Tensor
    decay: Tensor
    rate: Tensor
    counted: Tensor

    @classmethod
    def of(cls, bucket: Bucket, config: TrainerConfig, mesh: Mesh) -> Slice:
        """The state before the first step."""
        master = bucket.weights[bucket.own].float().clone()
        decay, rate, counted = (torch.zeros_like(master) for _ in range(3))
        for member, inside, _ in bucket.owned():
            decay[inside] = weight_decay(member.spec, config)
            rate[inside] = rate_factor(member.spec, config)
            counted[inside] = float(counts_here(member, mesh, config))
        return cls(master, torch.zeros_like(master), torch.zeros_like(master), decay, rate, counted)


def counts_here(member: Member, mesh: Mesh, config: TrainerConfig) -> bool:
    """Whether this rank counts a parameter in sums over the model: one rank does for each copy of an element."""
    axes = [axis for _, axis in member.spec.shards]
    model = (mesh.ep, mesh.etp) if member.spec.expert else (mesh.tp,)
    first = all(axis.rank == 0 for axis in model if axis not in axes)
    if not config.use_distributed_optimizer:
        first = first and (mesh.edp if member.spec.expert else mesh.replicas).rank == 0
    copy = member.spec.name == "embedding" and mesh.pp.size > 1 and mesh.pp.rank == mesh.pp.size - 1
    return first and not copy


@injection_point
def sum_over_tp(grad: Tensor, spec: Spec, mesh: Mesh) -> None:
    """Sums, in place, the gradient of a replicated weight that saw a part of the tokens or heads on each rank."""
    dist.all_reduce(grad, group=mesh.tp.group)


@injection_point
def sum_over_ends(grad: Tensor, mesh: Mesh) -> None:
    """Sums, in place, the gradients of the embedding's copies on the first and the last stage."""
    dist.all_reduce(grad, group=mesh.ends.group)


@injection_point
def squared_norm(grad: Tensor, counted: Tensor, bucket: Bucket) -> Tensor:
    """Sum of squares of the elements this rank counts, float64."""
    return (grad.double().square() * counted).sum()


@injection_point
def summed_squares(squares: Tensor, mesh: Mesh, config: TrainerConfig) -> float:
    """Sum of squares over all ranks."""
    if mesh.world.size > 1:
        dist.all_reduce(squares, group=mesh.world.group)
    return float(squares)


@injection_point
def clip_factor(norm: float, config: TrainerConfig) -> float:
    """What gradients are multiplied by so that their norm stays below the limit."""
    return min(1.0, config.clip_grad / (norm + 1e-6)) if config.clip_grad > 0 else 1.0


@injection_point
def clipped(gradient: Tensor, factor: float, bucket: Bucket) -> Tensor:
    """The gradient the update works with."""
    return gradient * factor


@injection_point
def learning_rate(step: int, config: TrainerConfig) -> float:
    """The learning rate of a step, counted from 1: linear warm-up, then decay to ``min_lr``."""
    if step <= config.lr_warmup_iters:
        return config.lr * step / config.lr_warmup_iters
    span = max(config.lr_decay_iters - config.lr_warmup_iters, 1)
    done = min((step - config.lr_warmup_iters) / span, 1.0)
    left = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return config.min_lr + (config.lr - config.min_lr) * left[config.lr_decay_style]


@injection_point
def weight_decay(spec: Spec, config: TrainerConfig) -> float:
    """Weight decay of a parameter: none on norms, biases and sinks."""
    return config.weight_decay if spec.decays else 0.0


@injection_point
def rate_factor(spec: Spec, config: TrainerConfig) -> float:
    """Learning rate of a parameter over that of the schedule."""
    decoupled = config.decoupled_lr is not None and spec.name in ("embedding", "head")
    return config.decoupled_lr / config.lr if decoupled and config.decoupled_lr is not None else 1.0


@injection_point
def update(state: Slice, gradient: Tensor, rate: float, step: int, config: TrainerConfig) -> None:
    """One update of the masters, in place. **Source:** arXiv 1711.05101 (AdamW), algorithm 2."""
    rates = rate * state.rate
    state.master.mul_(1 - rates * state.decay)
    if config.optimizer == "sgd":
        state.master.sub_(rates * gradient)
        return
    beta1, beta2 = betas(config)
    state.mean.lerp_(gradient, 1 - beta1)
    state.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if config.exp_avg_dtype == "bf16":
        state.mean.copy_(state.mean.bfloat16())
        state.square.copy_(state.square.bfloat16())
    first, second = bias_corrections(step, config)
    state.master.sub_(rates * (state.mean / first) / ((state.square / second).sqrt() + epsilon(config)))
    if config.main_params_dtype == "bf16":
        state.master.copy_(state.master.bfloat16())


@injection_point
def betas(config: TrainerConfig) -> tuple[float, float]:
    """Decay rates of Adam's moments."""
    return config.adam_beta1, config.adam_beta2


@injection_point
def epsilon(config: TrainerConfig) -> float:
    """What keeps Adam from dividing by zero."""
    return config.adam_eps


@injection_point
def bias_corrections(step: int, config: TrainerConfig) -> tuple[float, float]:
    """What Adam's moments are divided by after so many updates."""
    return 1 - config.adam_beta1**step, 1 - config.adam_beta2**step


@injection_point
def store(weights: Tensor, state: Slice) -> None:
    """Writes the masters into the weights of the forward pass."""
    weights.copy_(state.master)
