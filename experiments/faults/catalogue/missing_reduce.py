"""Gradients of which every rank holds a part that nobody adds up."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from attune_lab.trainer import communication as comm
from attune_lab.trainer.buckets import Bucket
from attune_lab.trainer.context import Context
from attune_lab.trainer.mesh import Axis, Mesh
from attune_lab.trainer.weights import Spec
from experiments.faults.catalogue.registry import declare

Sum = Callable[[Tensor, Spec, Mesh], None]
Gather = Callable[[Tensor, Axis], Tensor]

GROUP = "missing-reduce"
SEQUENCE_PARALLEL = {"tp": 2, "sequence_parallel": True}
CAPTURED = "layers.1."
"""The layer whose backward pass a CUDA graph replays."""


def not_summed(*endings: str) -> Callable[[Sum, Tensor, Spec, Mesh], None]:
    """A fault that leaves out the sum over tp for parameters whose names end so."""

    def skip(original: Sum, grad: Tensor, spec: Spec, mesh: Mesh) -> None:
        if not spec.name.endswith(endings):
            original(grad, spec, mesh)

    return skip


def norms_averaged(original: Sum, grad: Tensor, spec: Spec, mesh: Mesh) -> None:
    """Gradients of norms are averaged over the ranks that hold the parts of the sequence, not summed."""
    original(grad, spec, mesh)
    if spec.name.endswith("norm"):
        grad.div_(mesh.tp.size)


declare(
    "F016",
    "Gradients of norms averaged over tp",
    group=GROUP,
    source="EleutherAI/gpt-neox#1259",
    patches={"optimizer.sum_over_tp": norms_averaged},
    layout=SEQUENCE_PARALLEL,
)
declare(
    "F017",
    "Gradients of norms not summed over tp",
    group=GROUP,
    source="bigscience-workshop/Megatron-DeepSpeed#270",
    patches={"optimizer.sum_over_tp": not_summed("norm")},
    layout=SEQUENCE_PARALLEL,
)
declare(
    "F018",
    "Gradients of routers not summed over tp",
    group=GROUP,
    source="NVIDIA/Megatron-LM#619",
    patches={"optimizer.sum_over_tp": not_summed("router.weight")},
    workload="moe",
    layout=SEQUENCE_PARALLEL,
)
declare(
    "F023",
    "Gradients of keys and values shared by all heads not summed over tp",
    group=GROUP,
    source="bigcode-project/Megatron-LM#35",
    patches={"optimizer.sum_over_tp": not_summed("key", "value")},
    workload="sinks",
    layout={"tp": 2},
)
declare(
    "F024",
    "Sums over tp left out without sequence parallelism",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7452",
    patches={"optimizer.sum_over_tp": not_summed("")},
    workload="tied",
    layout={"tp": 2},
    note="The report's per-head norm is that of a gated delta net; here it is that of queries and keys.",
)
declare(
    "F025",
    "Gradients of query and key norms not summed over tp",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7452",
    patches={"optimizer.sum_over_tp": not_summed("query_norm", "key_norm")},
    workload="tied",
    layout=SEQUENCE_PARALLEL,
    note="The report has the same missing sum for another per-head norm.",
)
declare(
    "F121",
    "Gradients of replicated biases not summed over tp",
    group=GROUP,
    source="bigcode-project/Megatron-LM#11",
    patches={"optimizer.sum_over_tp": not_summed("bias")},
    workload="tied",
    layout=SEQUENCE_PARALLEL,
)


def own_share_of_gradient(original: Gather, x: Tensor, axis: Axis) -> Tensor:
    """Backwards every rank keeps its own part of the gradient of what it sent, instead of the sum of all parts."""
    parts = list(comm.all_gather(x, axis).chunk(axis.size))
    parts[axis.rank] = x
    return torch.cat(parts)


declare(
    "F020",
    "Gradients below the experts keep one rank's share",
    group=GROUP,
    source="pytorch/torchtitan#4054",
    patches={"moe.all_rows": own_share_of_gradient, "moe.all_weights": own_share_of_gradient},
    workload="moe",
    layout={**SEQUENCE_PARALLEL, "etp": 2, "dispatcher": "allgather"},
)
declare(
    "F021",
    "Router learns from the experts of its own rank only",
    group=GROUP,
    source="huggingface/transformers#48687",
    patches={"moe.all_weights": own_share_of_gradient},
    workload="moe",
    layout={"dp": 2, "ep": 2, "dispatcher": "allgather"},
)


def over_dense_replicas(
    original: Callable[..., dist.Work | None], grads: Tensor, reduced: Tensor, axis: Axis
) -> dist.Work | None:
    """Every gradient is summed over dp, of which there is one rank, although experts also have replicas over tp."""
    return original(grads, reduced, Axis())


declare(
    "F065",
    "Gradients of experts reduced over the ranks of dense weights",
    group=GROUP,
    source="NVIDIA/Megatron-LM#5916",
    patches={"buckets.reduce_gradients": over_dense_replicas},
    workload="moe",
    layout={**SEQUENCE_PARALLEL, "ep": 1, "etp": 1},
)


def hook_not_called(original: Callable[[Bucket], dist.Work | None], bucket: Bucket) -> dist.Work | None:
    """The captured backward pass never calls the hook that starts the reduction of its bucket."""
    captured = any(member.spec.name.startswith(CAPTURED) for member in bucket.members)
    return None if captured else original(bucket)


declare(
    "F093",
    "Gradients of a captured layer not reduced over dp",
    group=GROUP,
    source="NVIDIA/Megatron-LM#3074",
    patches={"buckets.begin_reduction": hook_not_called},
    layout={"dp": 2, "overlap_grad_reduce": True, "num_buckets": 8},
)


def first_slice(original: Callable[..., Tensor], tokens: Tensor, weight: Tensor, context: Context) -> Tensor:
    """The multi-token module gets the first slice of the embedded sequence on every rank, not the rank's own."""
    own = original(tokens, weight, context)
    if tokens is not context.batch.next_tokens:
        return own
    return comm.gather(own, context.mesh.tp)[: len(own)]


declare(
    "F111",
    "Embeddings of the multi-token module not scattered over the sequence",
    group=GROUP,
    source="NVIDIA/Megatron-LM#6256",
    patches={"loss.embedded": first_slice},
    workload="mtp",
    layout=SEQUENCE_PARALLEL,
    note="In the report the lengths clash and the run stops; cut to the same length, it goes on.",
)


def not_reduced(original: Callable[[Tensor, Context], Tensor], hidden: Tensor, context: Context) -> Tensor:
    """The gradient from the head is summed over tp in a copy, and the unsummed original goes on."""
    return hidden


declare(
    "F122",
    "Gradient from the head summed in a copy that is dropped",
    group=GROUP,
    source="NovaSky-AI/SkyRL#1886",
    patches={"loss.head_input": not_reduced},
    layout={"tp": 2},
)
