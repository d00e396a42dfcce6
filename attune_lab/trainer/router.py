"""The router of a mixture of experts: scores, choice, auxiliary losses and the balancing bias."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attune_lab.trainer import communication as comm
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.weights import Builder, Spec, in_forward, spec_of


class Routing(NamedTuple):
    """Where N tokens go.

    Attributes:
        experts: chosen experts, shape (N, k).
        weights: what their outputs are multiplied by, shape (N, k), float32; 0 where a token was dropped.
    """

    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """Hidden states (S', B, H) to a `Routing` of its S' x B tokens."""

    bias: Tensor

    def __init__(self, name: str, build: Builder) -> None:
        super().__init__()
        config = build.config
        shape = (config.num_experts, config.hidden)
        summed = config.sequence_parallel
        self.layer = name.removesuffix(".router")
        self.weight = build.parameter(
            Spec(f"{name}.weight", shape, std=config.init_method_std, summed_over_tp=summed)
        )  # fmt: skip
        self.register_buffer(
            "bias", build.weights.get(f"{name}.bias", torch.zeros(config.num_experts)).clone().to(self.weight.device)
        )

    def forward(self, x: Tensor, context: Context) -> Routing:
        """The routing, with the auxiliary losses attached to its weights."""
        config = context.config
        logits = logits_of(x, self.weight, context)
        scores = logits.softmax(-1) if config.score_function == "softmax" else logits.sigmoid()
        experts = choose(scores, self.bias, config.topk)
        picked = scores.gather(-1, experts)
        weights = combine_weights(picked)
        count_load(experts, self.layer, context)
        for name, value in auxiliary(logits, scores, experts, self.layer, context).items():
            context.observer.metric(name, self.layer, context.microbatch, value)
            weights = attached(weights, value, context)
        weights = within_capacity(experts, weights, self.layer, context)
        return Routing(experts.flatten(0, 1), weights.flatten(0, 1))


@injection_point
def logits_of(x: Tensor, weight: Tensor, context: Context) -> Tensor:
    """Router logits (S', B, E), float32."""
    used = in_forward(weight)
    context.observer.weight_used(spec_of(weight).name, weight, used)
    dtype = score_dtype(context.config)
    return F.linear(x.to(dtype), used.to(dtype)).float()


@injection_point
def score_dtype(config: TrainerConfig) -> torch.dtype:
    """What the router's product is computed in."""
    return torch.bfloat16 if config.router_dtype == "bf16" else torch.float32


@injection_point
def choose(scores: Tensor, bias: Tensor, topk: int) -> Tensor:
    """The k experts of each token, by score plus balancing bias. **Source:** arXiv 2408.15664, eq. 3."""
    return (scores.detach() + bias).topk(topk, dim=-1).indices


@injection_point
def combine_weights(picked: Tensor) -> Tensor:
    """Weights of the chosen experts' outputs: their scores, normalised."""
    return picked / picked.sum(-1, keepdim=True)


@injection_point
def count_load(experts: Tensor, layer: str, context: Context) -> None:
    """Notes how many tokens each expert is given."""
    count = torch.bincount(experts.flatten(), minlength=context.config.num_experts)
    context.observer.load[layer, context.microbatch] = count


@injection_point
def within_capacity(experts: Tensor, weights: Tensor, layer: str, context: Context) -> Tensor:
    """The weights, 0 for the tokens an expert has no room for; the heaviest stay."""
    factor = context.config.capacity_factor
    if factor is None:
        return weights
    flat, tokens = weights.flatten(0, 1), experts.flatten(0, 1)
    room = max(1, -int(-factor * tokens.numel() // context.config.num_experts))
    kept = torch.zeros_like(flat)
    for expert in range(context.config.num_experts):
        mine = flat.detach() * (tokens == expert)
        keep = mine.flatten().topk(min(room, mine.numel())).indices
        kept.view(-1)[keep] = (mine.flatten()[keep] > 0).to(flat.dtype)
    context.observer.dropped[layer, context.microbatch] = int(kept.numel() - kept.sum())
    return (flat * kept).view_as(weights)


def auxiliary(logits: Tensor, scores: Tensor, experts: Tensor, layer: str, context: Context) -> dict[str, Tensor]:
    """This rank's share of each auxiliary loss of the global batch, by the log's names."""
    config, losses = context.config, {}
    coefficient = aux_coefficient(config)
    if config.lb_type != "none" and coefficient > 0:
        balance = load_balancing(scores, experts, layer, context)
        losses["load_balancing_loss"] = coefficient * balance * context.sequence_weight
    if config.z_loss_coeff > 0:
        squares = logits.logsumexp(-1).square().sum() / config.seq_len
        losses["z_loss"] = config.z_loss_coeff * squares * context.sequence_weight
    return losses


@injection_point
def aux_coefficient(config: TrainerConfig) -> float:
    """Weight of the load-balancing loss."""
    return config.aux_loss_coeff


@injection_point
def load_balancing(scores: Tensor, experts: Tensor, layer: str, context: Context) -> Tensor:
    """Sum over sequences of E sum_e f_e P_e, f_e the share of choices and P_e the mean score of expert e.

    f_e counts the choices of the sequence (``seq_aux_loss``), of the micro-batch (``aux_loss``) or of all
    micro-batches so far (``global_aux_loss``), on all ranks that hold parts of them. The value is this rank's part.

    **Source:** arXiv 2101.03961 (Switch), eq. 4-6; arXiv 2405.04434 (DeepSeek-V2), eq. 22-24 per sequence.
    """
    config, mesh = context.config, context.mesh
    probabilities = balance_scores(scores)
    chosen = F.one_hot(experts, config.num_experts).sum(2).float()
    if config.router_padding_mask:
        text = token_mask(context)[..., None]
        chosen, probabilities = chosen * text, probabilities * text
    counts = comm.all_reduce(chosen.sum(0), _sharing(context))
    if config.lb_type == "aux_loss":
        counts = counts.mean(0, keepdim=True)
    elif config.lb_type == "global_aux_loss":
        seen = comm.all_reduce(counts.mean(0, keepdim=True), mesh.dp) / mesh.dp.size
        counts = _running_mean(seen, layer, context)
    shares = counts * config.num_experts / (config.topk * config.seq_len)
    return (shares * probabilities.sum(0) / config.seq_len).sum()


@injection_point
def token_mask(context: Context) -> Tensor:
    """1 for the tokens whose label counts, 0 for padding, shape (S', B)."""
    return context.batch.mask[:, context.rows].T


def _sharing(context: Context) -> Any:
    """The ranks that hold parts of one sequence's tokens."""
    return context.mesh.tokens if context.config.sequence_parallel else context.mesh.cp


def _running_mean(counts: Tensor, layer: str, context: Context) -> Tensor:
    """Mean of the counts of this step's micro-batches up to this one; a recomputed one replaces itself."""
    seen = context.observer.counts.setdefault(layer, {})
    seen[context.microbatch] = counts
    return torch.stack([seen[i] for i in sorted(seen) if i <= context.microbatch]).mean(0)


@injection_point
def balance_scores(scores: Tensor) -> Tensor:
    """Scores that sum to 1 over the experts."""
    return scores / scores.sum(-1, keepdim=True)


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.new_ones(())


@injection_point
def attached(x: Tensor, loss: Tensor, context: Context) -> Tensor:
    """``x``; its backward pass also sends a gradient of 1 into ``loss``, an auxiliary loss of a micro-batch."""
    return comm.call(_Attach, x, loss)


@injection_point
def update_bias(bias: Tensor, load: Tensor, rate: float) -> Tensor:
    """The balancing bias after a step that gave the experts ``load`` tokens. **Source:** arXiv 2408.15664, alg. 1."""
    return bias + rate * torch.sign(load.float().mean() - load.float())


@injection_point
def load_of_step(load: Tensor, stage: Any) -> Tensor:
    """The tokens per expert of the whole step, from those of one rank."""
    return comm.all_reduce(load, stage)
