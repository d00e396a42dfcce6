"""Norms that leave out parameters or count them several times, so that clipping is too weak or too strong."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer.buckets import Bucket, Member
from experiments.faults.catalogue.registry import declare

Norm = Callable[[Tensor, Tensor, Bucket], Tensor]

GROUP = "clip-norm"


def counted_as(factor: float, chosen: Callable[[Member], bool]) -> Callable[[Norm, Tensor, Tensor, Bucket], Tensor]:
    """A fault that counts, on ranks above the first, some members of a bucket so many times."""

    def squared_norm(original: Norm, grad: Tensor, counted: Tensor, bucket: Bucket) -> Tensor:
        counted = counted.clone()
        for member, inside, _ in bucket.owned():
            if chosen(member) and dist.get_rank() > 0:
                counted[inside] = factor
        return original(grad, counted, bucket)

    return squared_norm


declare(
    "F062",
    "Norm of gradients without the experts of other ranks",
    group=GROUP,
    source="NVIDIA/Megatron-LM#5916",
    patches={"optimizer.squared_norm": counted_as(0, lambda member: member.spec.expert)},
    workload="biased",
    layout={"tp": 2, "sequence_parallel": True, "ep": 2},
)
declare(
    "F063",
    "Replicated weights counted tp times in the norm",
    group=GROUP,
    source="ROCm/TransformerEngine#715",
    patches={"optimizer.squared_norm": counted_as(1, lambda member: not member.spec.shards)},
    workload="tied",
    layout={"tp": 2},
)
declare(
    "F114",
    "Norm of gradients without the attention sinks of other ranks",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7530",
    patches={"optimizer.squared_norm": counted_as(0, lambda member: member.spec.name.endswith("sink"))},
    workload="sinks",
    layout={"tp": 2},
    note="Harmless here: sinks have 2e-7 of the squared norm, so clipping is off by 1e-7.",
)
