"""Where the parameters of a Megatron-Core model lie: names of the whole model, owners, shards and places.

Each rank of a run holds parts and copies. A `Share` says of one parameter on this rank which elements of the whole
model's parameter they are, and whether this rank answers for them: over all ranks every element counts once.

**Source:** NVIDIA/Megatron-LM core_v0.16.1: megatron/core/tensor_parallel/layers.py (attributes of parameters),
megatron/core/transformer/mlp.py (the stride of gated layers), megatron/core/optimizer/distrib_optimizer.py (shards),
megatron/core/models/common/language_module/language_module.py (shared embeddings).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attune_lab.contracts import UserError
from attune_lab.signals.record import CHUNK, Piece, additive

_RENAMED = (
    (r"^(module\.)+", ""),
    (r"^embedding\.word_embeddings\.", "embedding."),
    (r"^embedding\.(position|tokentype)_embeddings\.", r"embedding.\1."),
    (r"^output_layer\.", "head."),
    (r"^decoder\.final_(layernorm|norm)\.", "final_norm."),
    (r"^decoder\.layers\.", "layers."),
    (r"^mtp\.layers\.(\d+)\.((transformer|mtp_model)_layer\.)?", r"mtp.\1."),
    (r"\.input_layernorm\.", ".input_norm."),
    (r"\.self_attention\.linear_qkv\.layer_norm_", ".input_norm."),
    (r"\.mlp\.linear_fc1\.layer_norm_", ".pre_mlp_norm."),
    (r"\.pre_mlp_layernorm\.", ".pre_mlp_norm."),
    (r"\.self_attention\.", ".attention."),
    (r"\.([a-z]+)_layernorm\.", r".\1_norm."),
    (r"\.mlp\.(router|shared_experts)\.", r".\1."),
    (r"\.mlp\.experts\.local_experts\.(\d+)\.", r".experts.\1."),
    (r"\.mlp\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$", r".experts.\3.\1.\2"),
)
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
_LAYER = re.compile(r"^layers\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Groups:
    """Process groups this rank belongs to; None stands for this rank alone.

    Attributes:
        world: all ranks.
        tp, pp, cp, ep: tensor, pipeline, context and expert parallelism.
        dp: ranks with copies of the dense parameters, context-parallel ones among them.
        etp, edp: the same as tp and dp for the routed experts.
        embedding: the pipeline stages that hold a copy of a shared embedding.
    """

    world: dist.ProcessGroup | None = None
    tp: dist.ProcessGroup | None = None
    pp: dist.ProcessGroup | None = None
    cp: dist.ProcessGroup | None = None
    ep: dist.ProcessGroup | None = None
    dp: dist.ProcessGroup | None = None
    etp: dist.ProcessGroup | None = None
    edp: dist.ProcessGroup | None = None
    embedding: dist.ProcessGroup | None = None


def megatron_groups() -> Groups:
    """The groups of the running Megatron job, from ``megatron.core.parallel_state``."""
    state = import_module("megatron.core.parallel_state")
    return Groups(
        world=dist.group.WORLD,
        tp=state.get_tensor_model_parallel_group(),
        pp=state.get_pipeline_model_parallel_group(),
        cp=state.get_context_parallel_group(),
        ep=state.get_expert_model_parallel_group(),
        dp=state.get_data_parallel_group(with_context_parallel=True),
        etp=state.get_expert_tensor_parallel_group(),
        edp=state.get_expert_data_parallel_group(),
        embedding=state.get_embedding_group(check_initialized=False),
    )


@dataclass(frozen=True, eq=False)
class Share:
    """One parameter on this rank.

    Attributes:
        name: in the whole model, as `attune_lab.signals.group_of` reads it.
        parameter: as the forward uses it.
        master: flat; what the optimizer steps, elements [start, stop) of the parameter (float32, where it keeps them).
        holder: the tensor whose gradient the optimizer reads; the master, or what it is a view of.
        first: no rank before this one in its data-parallel group steps the same elements.
        owned: this rank answers for [start, stop).
        expert: a routed expert.
        shared: a copy of the embedding that other pipeline stages have too.
        dim, stride: the dimension split over tensor parallelism, in ``stride`` blocks; None where all hold the same.
        part, parts: which part this rank holds, of how many.
    """

    name: str
    parameter: Tensor
    master: Tensor
    holder: Tensor
    start: int
    stop: int
    first: bool
    owned: bool
    expert: bool
    shared: bool
    dim: int | None
    stride: int
    part: int
    parts: int

    @property
    def plain(self) -> bool:
        """Whether the forward uses an ordinary tensor, not a quantised one."""
        return type(self.parameter.data) is Tensor

    def places(self, start: int, stop: int) -> Tensor:
        """Flat positions in the whole model's parameter of elements [start, stop) of this rank's."""
        local = torch.arange(start, stop, device=self.parameter.device)
        if self.dim is None:
            return local
        shape = self.parameter.shape
        inner, rows = shape[self.dim + 1 :].numel(), shape[self.dim]
        outer, row, column = local // (inner * rows), local // inner % rows, local % inner
        block = rows // self.stride
        whole = (row // block * self.parts + self.part) * block + row % block
        return (outer * rows * self.parts + whole) * inner + column


def owned_pieces(shares: Iterable[Share], values: Callable[[Share], Tensor | None]) -> Iterator[Piece]:
    """The elements this rank answers for, a bounded number at a time.

    Args:
        shares: of this rank.
        values: of a share: flat, elements [start, stop) of it, or None to leave it out.
    """
    for share in shares:
        if share.owned and (flat := values(share)) is not None:
            for begin in range(0, len(flat), CHUNK):
                end = min(begin + CHUNK, len(flat))
                yield Piece(share.name, flat[begin:end], share.places(share.start + begin, share.start + end))


def shares_of(model: Sequence[nn.Module], optimizer: Any, groups: Groups) -> list[Share]:
    """What this rank holds of the trained parameters, in the order of the model.

    Args:
        model: the chunks of this rank, as Megatron passes them around.
        optimizer: Megatron's, chained or not.
        groups: of this rank.

    Raises:
        UserError: a kind of parameter or optimizer whose parts the hooks cannot place.
    """
    masters = _masters(optimizer)
    named = [
        (name, parameter, _gated(chunk))
        for chunk in model
        for name, parameter in whole_names(chunk, rank_in(groups.ep))
        if parameter in masters
    ]
    ranges = {name: (masters[p].start, masters[p].start + masters[p].values.numel()) for name, p, _ in named}
    earlier: dict[str, set[tuple[int, int]]] = {}
    for expert, group in ((False, groups.dp), (True, groups.edp)):
        earlier |= _earlier_ranges({name: r for name, r in ranges.items() if _expert(name) == expert}, group)
    return [
        _share(name, parameter, masters[parameter], gated, ranges[name] not in earlier[name], groups)
        for name, parameter, gated in named
    ]


def check_cover(shares: Sequence[Share], names: Sequence[str], groups: Groups) -> None:
    """Makes sure that the owned elements of all ranks are as many as the whole model has. Collective.

    Raises:
        UserError: a parameter has elements that no rank or several ranks answer for.
    """
    own = {share.name: torch.tensor([float(share.stop - share.start)]) for share in shares if share.owned}
    owned = additive(own, names, 1, groups.world)
    for share in shares:
        found, wanted = owned[share.name][0], share.parameter.numel() * share.parts
        if found != wanted:
            raise UserError(
                f"{share.name}: {found:.0f} elements have an owner, the whole model has {wanted}; the hooks do not "
                "know this layout: remove them from the run, or name the split in the attributes of the parameter."
            )


def whole_names(chunk: nn.Module, ep_rank: int) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of a model chunk by their name in the whole model: global numbers of layers (from 0) and experts."""
    layers = {
        name: m.layer_number - 1 for name, m in chunk.named_modules() if re.search(r"(^|\.)decoder\.layers\.\d+$", name)
    }
    experts = {name: m.num_local_experts for name, m in chunk.named_modules() if name.endswith(".mlp.experts")}
    for name, parameter in chunk.named_parameters():
        whole = "embedding.weight" if getattr(parameter, "shared_embedding", False) else renamed(name)
        for layer in (number for prefix, number in layers.items() if name.startswith(prefix + ".")):
            whole = _LAYER.sub(f"layers.{layer}", whole)
        for local in (number for prefix, number in experts.items() if name.startswith(prefix + ".")):
            whole = _EXPERT.sub(partial(_shifted, ep_rank * local), whole)
        yield whole, parameter


def _shifted(offset: int, number: re.Match[str]) -> str:
    return str(offset + int(number[0]))


def renamed(name: str) -> str:
    """A Megatron-Core parameter's name in the vocabulary of `attune_lab.signals.group_of`, numbers as they are."""
    for pattern, text in _RENAMED:
        name = re.sub(pattern, text, name)
    return name


def union(items: Iterable[Any], groups: Iterable[dist.ProcessGroup | None]) -> tuple[Any, ...]:
    """What the ranks of one group, then of the next, have together, sorted. Collective."""
    found = set(items)
    for group in groups:
        if group is not None:
            everyone: list[Any] = [None] * size_of(group)
            dist.all_gather_object(everyone, found, group=group)
            found = set().union(*everyone)
    return tuple(sorted(found))


def rank_in(group: dist.ProcessGroup | None) -> int:
    """This rank's place in a group."""
    return 0 if group is None else dist.get_rank(group)


def size_of(group: dist.ProcessGroup | None) -> int:
    """The number of ranks in a group."""
    return 1 if group is None else dist.get_world_size(group)


def _expert(name: str) -> bool:
    return ".experts." in name


def _earlier_ranges(
    ranges: Mapping[str, tuple[int, int]], group: dist.ProcessGroup | None
) -> dict[str, set[tuple[int, int]]]:
    """By parameter, the ranges that ranks before this one in a group step. Collective."""
    everyone: list[Any] = [ranges]
    if group is not None:
        everyone = [None] * size_of(group)
        dist.all_gather_object(everyone, dict(ranges), group=group)
    return {name: {other[name] for other in everyone[: rank_in(group)]} for name in ranges}


def _share(name: str, parameter: Tensor, master: _Master, gated: bool, first: bool, groups: Groups) -> Share:
    expert = _expert(name)
    tp = groups.etp if expert else groups.tp
    dim, stride = _split(name, parameter, expert, gated, size_of(tp))
    first_copy = dim is not None or rank_in(tp) == 0
    return Share(
        name=name,
        parameter=parameter,
        master=master.values.detach().view(-1),
        holder=master.values,
        start=master.start,
        stop=master.start + master.values.numel(),
        first=first,
        owned=first and first_copy and not getattr(parameter, "shared", False),
        expert=expert,
        shared=bool(getattr(parameter, "shared_embedding", False)),
        dim=dim,
        stride=stride,
        part=rank_in(tp) if dim is not None else 0,
        parts=size_of(tp) if dim is not None else 1,
    )


def _split(name: str, parameter: Tensor, expert: bool, gated: bool, tp: int) -> tuple[int | None, int]:
    """The dimension of a parameter that tensor parallelism splits, and in how many blocks.

    Of routed experts the attributes do not tell: grouped ones are built as if they were whole.
    """
    if tp == 1:
        return None, 1
    stride = 2 if gated and "linear_fc1" in name else int(getattr(parameter, "partition_stride", 1))
    if expert:
        if not re.search(r"linear_fc[12]\.(weight|bias)$", name):
            raise UserError(f"{name}: the hooks cannot place this kind of expert; use TEGroupedMLP or SequentialMLP.")
        row_parallel = "linear_fc2" in name
        return (None, 1) if row_parallel and name.endswith("bias") else (1 if row_parallel else 0, stride)
    if not getattr(parameter, "tensor_model_parallel", False):
        return None, 1
    return int(getattr(parameter, "partition_dim", 0)), stride


def _gated(chunk: nn.Module) -> bool:
    """Whether the two halves of a feed-forward layer's first weight are gate and input, each split by itself."""
    return bool(getattr(getattr(chunk, "config", None), "gated_linear_unit", False))


@dataclass(frozen=True, eq=False)
class _Master:
    values: Tensor
    start: int = 0


def _masters(optimizer: Any) -> Mapping[Tensor, _Master]:
    """By parameter, the tensor the optimizer steps. A parameter without elements on this rank has an empty one."""
    masters: dict[Tensor, _Master] = {}
    for single in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(single, "is_stub_optimizer", False):
            continue
        if hasattr(single, "gbuf_ranges"):
            masters |= _sharded_masters(single)
        elif hasattr(single, "float16_groups"):
            pairs = _pairs(single.float16_groups, single.fp32_from_float16_groups)
            masters |= {parameter: _Master(main) for parameter, main in pairs}
            masters |= {p: _Master(p) for group in single.fp32_from_fp32_groups for p in group}
        elif type(single).__name__ == "FP32Optimizer" or isinstance(single, torch.optim.Optimizer):
            masters |= {p: _Master(p) for group in single.param_groups for p in group["params"]}
        else:
            raise UserError(
                f"the hooks do not know where {type(single).__name__} keeps its weights; run the gate's pair with the "
                "distributed or the plain optimizer of Megatron-Core."
            )
    return masters


def _sharded_masters(optimizer: Any) -> dict[Tensor, _Master]:
    """Of the distributed optimizer: it steps a range of each parameter, from its maps of the gradient buffers."""
    stepped = dict(_pairs(optimizer.model_fp32_groups, optimizer.shard_fp32_groups))
    halves = optimizer.shard_fp32_from_float16_groups
    for model_group, main_group, own_group in zip(
        optimizer.model_float16_groups, halves, optimizer.shard_float16_groups, strict=True
    ):
        for parameter, main, own in zip(model_group, main_group, own_group, strict=True):
            stepped[parameter] = own if main is None else main  # None: the inner optimizer holds the float32 copy
    masters = {}
    for buffer, by_dtype in zip(optimizer.buffers, optimizer.gbuf_ranges, strict=True):
        ranges = {p: r["param"] for buckets in by_dtype.values() for b in buckets for p, r in b["param_map"].items()}
        for parameter in buffer.param_index_map:
            here = ranges.get(parameter)
            empty = parameter.detach().reshape(-1)[:0]
            masters[parameter] = _Master(stepped[parameter], here.start) if here else _Master(empty)
    return masters


def _pairs(left: Iterable[Iterable[Tensor]], right: Iterable[Iterable[Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for ones, others in zip(left, right, strict=True):
        yield from zip(ones, others, strict=True)
