"""Parameters and their gradients in flat buckets: accumulation, reduction over replicas, and sharing of weights.

A bucket holds parameters with the same replicas. With a distributed optimizer each replica owns one slice of it:
gradients are reduce-scattered into the slice and updated weights all-gathered from the slices.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis, Mesh
from attune_lab.trainer.model import Chunk
from attune_lab.trainer.weights import Spec, spec_of


@dataclass(frozen=True)
class Member:
    """One parameter in a bucket, at ``start`` to ``end`` of the flat buffers."""

    spec: Spec
    parameter: nn.Parameter
    start: int
    end: int


class Bucket:
    """Some parameters of one chunk, flat.

    Attributes:
        members: its parameters.
        axis: the ranks that hold replicas of them.
        weights: what the forward computes with; the parameters are views of it.
        grads: sums of this step's gradients so far.
        own: the slice this rank's optimizer works on; everything without a distributed optimizer.
        reduced: the gradients of that slice, summed over the replicas.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], axis: Axis, config: TrainerConfig) -> None:
        self.axis, self.config = axis, config
        self.members: list[Member] = []
        end = 0
        for parameter in parameters:
            self.members.append(Member(spec_of(parameter), parameter, end, end + parameter.numel()))
            end += parameter.numel()
        size = -(-end // axis.size) * axis.size
        self.weights = torch.zeros(size, dtype=parameters[0].dtype)
        self.grads = torch.zeros(size, dtype=gradient_dtype(self.weights.dtype, config))
        share = size // axis.size
        first = axis.rank * share
        self.own = slice(first, first + share) if config.use_distributed_optimizer else slice(0, size)
        self.reduced = torch.empty_like(self.grads[self.own]) if config.use_distributed_optimizer else self.grads
        self._work: dist.Work | None = None
        self._waiting = 0
        for member in self.members:
            flat = self.weights[member.start : member.end]
            flat.copy_(member.parameter.detach().flatten())
            member.parameter.data = flat.view(member.parameter.shape)
            member.parameter.register_post_accumulate_grad_hook(self._hook(member))  # type: ignore[no-untyped-call]

    def zero(self, microbatches: int) -> None:
        """Starts a step of so many micro-batches."""
        self.grads.zero_()
        self._waiting = microbatches * len(self.members)

    def _hook(self, member: Member) -> object:
        # torch keeps hooks where the garbage collector does not look: a strong reference would never be freed.
        reference, spec, start, end = weakref.ref(self), member.spec, member.start, member.end

        def accumulate_gradient(parameter: nn.Parameter) -> None:
            bucket = reference()
            assert bucket is not None
            assert parameter.grad is not None
            accumulate(bucket.grads[start:end], parameter.grad.flatten(), spec)
            parameter.grad = None
            bucket.arrived()

        return accumulate_gradient

    def arrived(self) -> None:
        """Counts one gradient; after the last of the step the reduction begins where it is overlapped."""
        self._waiting -= 1
        if self._waiting == 0 and self.config.overlap_grad_reduce:
            self.start_reduction()

    def start_reduction(self) -> None:
        """Begins the sum over replicas."""
        self._work = begin_reduction(self)

    def finish_reduction(self) -> None:
        """The gradients are in ``reduced`` when this returns."""
        if not self.config.overlap_grad_reduce:
            self.start_reduction()
        if self._work is not None:
            self._work.wait()
        self._work = None

    def start_gather(self) -> None:
        """Begins to send every owner's weights to the replicas."""
        if self.config.use_distributed_optimizer:
            self._work = gather_weights(self.weights, self.own, self.axis)

    def finish_gather(self) -> None:
        """All weights are up to date when this returns."""
        if self._work is not None:
            self._work.wait()
        self._work = None

    def owned(self) -> Iterator[tuple[Member, slice, slice]]:
        """(member, its part inside ``own``, the same part counted from the member's first element)."""
        for member in self.members:
            start, end = max(member.start, self.own.start), min(member.end, self.own.stop)
            if start < end:
                inside = slice(start - self.own.start, end - self.own.start)
                yield member, inside, slice(start - member.start, end - member.start)


@injection_point
def gradient_dtype(weights: torch.dtype, config: TrainerConfig) -> torch.dtype:
    """What gradients are accumulated and reduced in."""
    return torch.float32 if config.grad_reduce_in_fp32 else weights


@injection_point
def accumulate(total: Tensor, grad: Tensor, spec: Spec) -> None:
    """Adds a micro-batch's gradient of one parameter to the step's."""
    total.add_(grad)


@injection_point
def begin_reduction(bucket: Bucket) -> dist.Work | None:
    """Begins the sum of a bucket's gradients over its replicas."""
    return reduce_gradients(bucket.grads, bucket.reduced, bucket.axis)


@injection_point
def reduce_gradients(grads: Tensor, reduced: Tensor, axis: Axis) -> dist.Work | None:
    """Begins to sum gradients over replicas: all of them in place, or this rank's slice into ``reduced``."""
    whole = reduced.data_ptr() == grads.data_ptr() and len(reduced) == len(grads)
    if axis.size == 1:
        if not whole:
            reduced.copy_(grads)
        return None
    work: dist.Work
    if whole:
        work = dist.all_reduce(grads, group=axis.group, async_op=True)
    else:
        work = dist.reduce_scatter_single(reduced, grads, group=axis.group, async_op=True)
    return work


@injection_point
def gather_weights(weights: Tensor, own: slice, axis: Axis) -> dist.Work | None:
    """Begins to collect the replicas' slices of updated weights."""
    if axis.size == 1:
        return None
    work: dist.Work = dist.all_gather_single(weights, weights[own].clone(), group=axis.group, async_op=True)
    return work


def make_buckets(chunks: Sequence[Chunk], config: TrainerConfig, mesh: Mesh) -> list[Bucket]:
    """The buckets of all chunks: per chunk the embedding, ``num_buckets`` of dense parameters, last layers first,
    and as many of experts. The embedding is alone so that its copies on two stages are sliced alike."""
    buckets = []
    for chunk in chunks:
        specs = [(p, spec_of(p)) for p in reversed(list(chunk.parameters()))]
        tables = [p for p, spec in specs if spec.name == "embedding"]
        dense = [p for p, spec in specs if not spec.expert and spec.name != "embedding"]
        experts = [p for p, spec in specs if spec.expert]
        for parameters, axis in ((tables, mesh.replicas), (dense, mesh.replicas), (experts, mesh.edp)):
            buckets += [Bucket(part, axis, config) for part in _parts(parameters, config.num_buckets)]
    return buckets


def _parts(parameters: list[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """At most ``count`` runs of neighbouring parameters, none of them empty."""
    count = min(count, len(parameters))
    bounds = [round(i * len(parameters) / count) for i in range(count + 1)] if count else []
    return [parameters[a:b] for a, b in pairwise(bounds)]
