"""A mixture of experts: tokens go to the ranks of their experts and come back."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attune_lab.trainer import communication as comm
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis
from attune_lab.trainer.mlp import Mlp
from attune_lab.trainer.router import Router, Routing
from attune_lab.trainer.weights import Builder, Spec, in_forward, spec_of


class Moe(nn.Module):
    """Routed experts and an optional shared one; hidden states (S', B, H) to the same shape."""

    def __init__(self, name: str, build: Builder) -> None:
        super().__init__()
        config = build.config
        self.router = Router(f"{name}.router", build)
        self.experts = Experts(f"{name}.experts", build)
        shared = config.shared_expert_size
        self.shared_experts = Mlp(f"{name}.shared_experts", shared, build) if shared else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The feed-forward branch of a layer."""
        routing = self.router(x, context)
        dispatch = through_all_to_all if context.config.dispatcher == "alltoall" else through_all_gather
        mixed = dispatch(x.flatten(0, 1), routing, self.experts, context).view_as(x)
        return mixed if self.shared_experts is None else mixed + self.shared_experts(shared_input(x), context)


@injection_point
def shared_input(x: Tensor) -> Tensor:
    """What the shared expert reads."""
    return x


class Experts(nn.Module):
    """The experts of one rank: ``num_experts / ep`` of them, each divided over etp by its inner features."""

    def __init__(self, name: str, build: Builder) -> None:
        super().__init__()
        config, mesh = build.config, build.mesh
        count, ffn, hidden = config.num_experts, config.moe_ffn, config.hidden
        std, small = config.init_method_std, config.init_method_std / (2 * config.num_layers) ** 0.5
        inner, outer = ((0, mesh.ep), (1, mesh.etp)), ((0, mesh.ep), (2, mesh.etp))
        self.gate = build.parameter(Spec(f"{name}.gate", (count, ffn, hidden), inner, std, expert=True))
        self.up = build.parameter(Spec(f"{name}.up", (count, ffn, hidden), inner, std, expert=True))
        self.down = build.parameter(Spec(f"{name}.down", (count, hidden, ffn), outer, small, expert=True))
        self.down_bias: nn.Parameter | None = None
        if config.add_bias_linear:
            bias = Spec(f"{name}.down_bias", (count, hidden), ((0, mesh.ep),), expert=True, decays=False)
            self.down_bias = build.parameter(bias)

    def forward(self, x: Tensor, counts: list[int], context: Context) -> Tensor:
        """Outputs of tokens sorted by local expert, ``counts`` of each; partial sums when etp is above 1."""
        weights = [self._used(weight, context) for weight in (self.gate, self.up, self.down)]
        compute = _grouped if context.config.grouped_gemm else _one_by_one
        return compute(x, counts, *weights)

    def _used(self, weight: Tensor, context: Context) -> Tensor:
        used = in_forward(weight)
        context.observer.weight_used(spec_of(weight).name, weight, used)
        return used


def _one_by_one(x: Tensor, counts: list[int], gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    outputs = []
    for rows, g, u, d in zip(torch.split(x, counts), gate, up, down, strict=True):
        outputs.append(F.linear(F.silu(F.linear(rows, g)) * F.linear(rows, u), d))
    return torch.cat(outputs)


def _grouped(x: Tensor, counts: list[int], gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """All experts in one batched product over rows padded to the longest."""
    longest = max(*counts, 1)
    padded = torch.stack([F.pad(rows, (0, 0, 0, longest - len(rows))) for rows in torch.split(x, counts)])
    inner = F.silu(padded @ gate.mT) * (padded @ up.mT)
    return torch.cat([rows[:count] for rows, count in zip(inner @ down.mT, counts, strict=True)])


class Sent(NamedTuple):
    """Token copies on the way to their experts: hidden states (M, H) and the expert of each (M,)."""

    rows: Tensor
    experts: Tensor


def through_all_to_all(x: Tensor, routing: Routing, experts: Experts, context: Context) -> Tensor:
    """Expert outputs of N tokens (N, H), each copy sent to the rank of its expert and back."""
    ep, etp = context.mesh.ep, context.mesh.etp
    chosen = routing.experts.flatten()
    order = chosen.argsort(stable=True)
    token = order // routing.experts.shape[1]
    sent = rows_per_rank(chosen, context)
    received = comm.exchange(torch.tensor(sent), ep, [1] * ep.size, [1] * ep.size).tolist()
    rows = comm.all_to_all(x[token], ep, received, sent)
    numbers = comm.exchange(chosen[order], ep, received, sent)
    outputs = _compute(Sent(rows, numbers), experts, etp, context)
    back = comm.all_to_all(outputs, ep, sent, received)
    return combined(back, routing.weights.flatten()[order], token, x.shape)


def rows_per_rank(chosen: Tensor, context: Context) -> list[int]:
    """How many token copies go to each expert-parallel rank."""
    per_expert = torch.bincount(chosen, minlength=context.config.num_experts)
    counts: list[int] = per_expert.view(context.mesh.ep.size, -1).sum(1).tolist()
    return counts


def _compute(sent: Sent, experts: Experts, etp: Axis, context: Context) -> Tensor:
    """Outputs of the received copies, in their order."""
    if etp.size == 1:
        return expert_outputs(sent, experts, context)
    lengths = comm.all_gather(torch.tensor([len(sent.rows)]), etp).tolist()
    longest = max(lengths)
    padding = longest - len(sent.rows)
    rows = all_rows(F.pad(sent.rows, (0, 0, 0, padding)), etp)
    numbers = comm.all_gather(F.pad(sent.experts, (0, padding), value=-1), etp)
    valid = numbers >= 0
    partial = torch.zeros_like(rows)
    partial = partial.masked_scatter(
        valid[:, None], expert_outputs(Sent(rows[valid], numbers[valid]), experts, context)
    )  # fmt: skip
    return comm.scatter_sum(partial, etp)[: len(sent.rows)]


@injection_point
def expert_outputs(sent: Sent, experts: Experts, context: Context) -> Tensor:
    """Outputs of token copies by this rank's experts, in the order of the copies."""
    per_rank = context.config.num_experts // context.mesh.ep.size
    local = sent.experts - context.mesh.ep.rank * per_rank
    order = local.argsort(stable=True)
    counts: list[int] = torch.bincount(local, minlength=per_rank).tolist()
    outputs = experts(sent.rows[order], counts, context)
    if experts.down_bias is not None and context.mesh.etp.rank == 0:
        outputs = outputs + in_forward(experts.down_bias)[local[order]]
    return torch.zeros_like(outputs).index_copy(0, order, outputs)


@injection_point
def combined(outputs: Tensor, weights: Tensor, token: Tensor, shape: torch.Size) -> Tensor:
    """The weighted sum of each token's expert outputs, shape (N, H)."""
    weighted = outputs.float() * weights[:, None]
    return torch.zeros(shape, dtype=torch.float32).index_add(0, token, weighted).to(outputs.dtype)


def through_all_gather(x: Tensor, routing: Routing, experts: Experts, context: Context) -> Tensor:
    """Expert outputs of N tokens (N, H): every rank sees all tokens and computes those of its experts."""
    axis, ep = context.mesh.expert_parallel, context.mesh.ep
    rows = all_rows(x, axis)
    weights = all_weights(routing.weights, axis).flatten()
    chosen = comm.all_gather(routing.experts, axis).flatten()
    per_rank = context.config.num_experts // ep.size
    mine = (chosen // per_rank == ep.rank).nonzero().flatten()
    token = mine // routing.experts.shape[1]
    outputs = expert_outputs(Sent(rows[token], chosen[mine]), experts, context)
    return comm.scatter_sum(combined(outputs, weights[mine], token, rows.shape), axis)


@injection_point
def all_rows(x: Tensor, axis: Axis) -> Tensor:
    """The hidden states of all ranks on the way into a part of the experts; gradients are summed back."""
    return comm.gather(x, axis)


@injection_point
def all_weights(weights: Tensor, axis: Axis) -> Tensor:
    """The combine weights of all ranks, of which each uses those of its experts; gradients are summed back."""
    return comm.gather(weights, axis)
