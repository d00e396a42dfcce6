"""The transformer: layers, and the chunk of them that one pipeline stage holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attune_lab.trainer.attention import Attention
from attune_lab.trainer.context import Context
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.linear import linear, rms_norm
from attune_lab.trainer.loss import embedded, loss_weight, masked_sum, token_losses
from attune_lab.trainer.mlp import Mlp
from attune_lab.trainer.moe import Moe
from attune_lab.trainer.recompute import recomputed
from attune_lab.trainer.weights import Builder, Spec


class Layer(nn.Module):
    """Attention and feed-forward branch around a residual stream (S', B, H)."""

    def __init__(self, name: str, build: Builder) -> None:
        super().__init__()
        config = build.config
        self.name = name
        self.input_norm = build.norm(f"{name}.input_norm", config.hidden)
        self.attention = Attention(f"{name}.attention", build)
        self.pre_mlp_norm = build.norm(f"{name}.pre_mlp_norm", config.hidden)
        moe = config.num_experts > 0
        self.mlp: nn.Module = Moe(name, build) if moe else Mlp(f"{name}.mlp", config.ffn, build)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The layer's output."""
        config = context.config
        x = x + dropped_out(self.attention(rms_norm(x, self.input_norm, config), context), self.name, 0, context)
        return x + dropped_out(self.mlp(rms_norm(x, self.pre_mlp_norm, config), context), self.name, 1, context)


@injection_point
def layer_output(layer: nn.Module, x: Tensor, context: Context) -> Tensor:
    """The output of a layer, recomputed in the backward pass when the configuration says so."""
    return recomputed(layer, x, context, when="full", config=context.config)


def dropped_out(x: Tensor, layer: str, branch: int, context: Context) -> Tensor:
    """``x`` with dropout; the mask is a function of step, layer and position, not of the layout."""
    rate = context.config.hidden_dropout
    if rate == 0:
        return x
    rows = [keep_mask(context, layer, branch, j) for j in range(x.shape[1])]
    keep = torch.stack(rows, 1)[context.rows]
    return x * keep.to(x.dtype) / (1 - rate)


@injection_point
def keep_mask(context: Context, layer: str, branch: int, sequence: int) -> Tensor:
    """Which hidden values of one sequence of the micro-batch stay, shape (S, H), bool."""
    seed = dropout_seed(context, sequence)
    key = hash((seed, tuple(layer.encode()), branch)) & (2**63 - 1)
    generator = torch.Generator("cpu").manual_seed(key)
    shape = (context.config.seq_len, context.config.hidden)
    drawn = torch.rand(shape, generator=generator, device="cpu")
    return drawn.to(context.own.device) >= context.config.hidden_dropout


@injection_point
def dropout_seed(context: Context, sequence: int) -> tuple[int, ...]:
    """What a sequence's dropout masks are drawn from: its place in the global batch."""
    config, dp = context.config, context.mesh.dp
    place = (context.microbatch * dp.size + dp.rank) * config.mbs + sequence
    return config.seed, context.step, place


class Mtp(nn.Module):
    """Predicts the token after the next from the trunk and the next token's embedding.

    **Source:** arXiv 2412.19437 (DeepSeek-V3), section 2.2.
    """

    def __init__(self, build: Builder) -> None:
        super().__init__()
        hidden = build.config.hidden
        self.trunk_norm = build.norm("mtp.trunk_norm", hidden)
        self.token_norm = build.norm("mtp.token_norm", hidden)
        summed = build.config.sequence_parallel
        self.projection = build.parameter(
            Spec("mtp.projection", (hidden, 2 * hidden), std=build.config.init_method_std, summed_over_tp=summed)
        )
        self.layer = Layer("mtp.layer", build)
        self.final_norm = build.norm("mtp.final_norm", hidden)

    def forward(self, trunk: Tensor, tokens: Tensor, context: Context) -> Tensor:
        """Normed hidden states (S', B, H) that predict one token further."""
        config = context.config
        both = [rms_norm(trunk, self.trunk_norm, config), rms_norm(tokens, self.token_norm, config)]
        mixed = linear(torch.cat(both, -1), self.projection, context)
        return rms_norm(layer_output(self.layer, mixed, context), self.final_norm, config)


class Losses(NamedTuple):
    """What the last stage makes of a micro-batch.

    Attributes:
        objective: what is differentiated: losses weighted so that micro-batches and ranks add up.
        summed: sum of the unmasked own tokens' losses, without a gradient.
        mtp: the same for the MTP module.
        tokens: the own tokens' losses, shape (S / cp, B), without a gradient.
    """

    objective: Tensor
    summed: Tensor
    mtp: Tensor
    tokens: Tensor


class Chunk(nn.Module):
    """The layers a stage runs at once, with the embedding before the first and the losses after the last."""

    def __init__(self, position: int, build: Builder) -> None:
        super().__init__()
        config = build.config
        stages = config.pp * config.vpp
        per_chunk = config.num_layers // stages
        self.first, self.last = position == 0, position == stages - 1
        numbers = range(position * per_chunk, (position + 1) * per_chunk)
        self.layers = nn.ModuleList([Layer(f"layers.{n}", build) for n in numbers])
        tied, mtp = not config.untie_embeddings, config.mtp_num_layers > 0
        self.embedding: nn.Parameter | None = None
        if self.first or (self.last and (tied or mtp)):
            self.embedding = build.matrix("embedding", config.vocab_size, config.hidden, ((0, build.mesh.tp),))
        if self.last:
            self.final_norm = build.norm("final_norm", config.hidden)
            self.mtp = Mtp(build) if mtp else None
            self.head = self.embedding
            if not tied:
                self.head = build.matrix("head", config.vocab_size, config.hidden, ((0, build.mesh.tp),))

    def forward(self, x: Tensor | None, context: Context, totals: tuple[float, float]) -> Tensor | Losses:
        """Hidden states for the next chunk, or the losses.

        Args:
            x: hidden states of the chunk before; None in the first.
            context: of the micro-batch.
            totals: unmasked tokens of the global batch, for the language model and for MTP.
        """
        if self.first:
            assert self.embedding is not None
            x = embedded(context.batch.tokens, self.embedding, context)
        assert x is not None
        for layer in self.layers:
            x = layer_output(layer, x, context)
        return self._losses(x, context, totals) if self.last else x

    def _losses(self, x: Tensor, context: Context, totals: tuple[float, float]) -> Losses:
        batch = context.batch
        assert self.head is not None
        hidden = rms_norm(x, self.final_norm, context.config)
        tokens = token_losses(hidden, self.head, batch.labels, context)
        summed = masked_sum(tokens, batch.mask, context)
        objective = summed * loss_weight(context, batch.mask, totals[0])
        mtp = torch.zeros(())
        if self.mtp is not None:
            mtp = self._mtp(x, context)
            objective = objective + mtp * mtp_weight(context, batch.next_mask, totals[1])
        return Losses(objective, summed.detach(), mtp.detach(), tokens.detach())

    def _mtp(self, trunk: Tensor, context: Context) -> Tensor:
        """Sum of the MTP losses of the own tokens."""
        assert self.mtp is not None
        assert self.embedding is not None
        assert self.head is not None
        following = embedded(context.batch.next_tokens, self.embedding, context)
        hidden = self.mtp(mtp_trunk(trunk), following, context)
        losses = token_losses(hidden, self.head, context.batch.next_labels, context)
        return masked_sum(losses, context.batch.next_mask, context)


@injection_point
def mtp_trunk(trunk: Tensor) -> Tensor:
    """The hidden states the MTP module reads."""
    return trunk


@injection_point
def mtp_weight(context: Context, mask: Tensor, total: float) -> float:
    """What the summed MTP loss of a micro-batch is multiplied by."""
    return context.config.mtp_loss_scaling_factor * loss_weight(context, mask, total)
