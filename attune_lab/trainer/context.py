"""What the layers need to know of a micro-batch besides its hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.data import Batch
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.mesh import Axis, Mesh
from attune_lab.trainer.observer import Observer


@dataclass(frozen=True)
class Context:
    """One micro-batch on one rank.

    Attributes:
        config, mesh: of the run.
        step, microbatch: from 1 and from 0.
        batch: all sequences in full length, the same on every rank of a pipeline, tp and cp group.
        own: positions in the sequence this context-parallel rank works on, shape (S / cp,).
        allowed: True where a query may look at a key, shape (B, 1, S / cp, S); (B, 1, S, S) with all-to-all.
        cos, sin: rotary factors of the own tokens, shape (S / cp, B, 1, head / 2).
        sequence_weight: 1 / sequences of the global batch.
        observer: collects what the gate wants to see.
    """

    config: TrainerConfig
    mesh: Mesh
    step: int
    microbatch: int
    batch: Batch
    own: Tensor
    allowed: Tensor
    cos: Tensor
    sin: Tensor
    sequence_weight: float
    observer: Observer

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the hidden states between layers: (S / cp / tp with sequence parallelism, B, H)."""
        parts = self.mesh.tp.size if self.config.sequence_parallel else 1
        return len(self.own) // parts, self.batch.tokens.shape[0], self.config.hidden

    @property
    def rows(self) -> Tensor:
        """Positions in the sequence of the rows between layers, shape (shape[0],)."""
        return self.own.chunk(self.mesh.tp.size)[self.mesh.tp.rank] if self.config.sequence_parallel else self.own


def make_context(
    config: TrainerConfig, mesh: Mesh, batch: Batch, observer: Observer, *, step: int = 1, microbatch: int = 0
) -> Context:
    """The context of a micro-batch."""
    own = own_positions(config.seq_len, mesh.cp)
    order = key_order(config.seq_len, mesh.cp)
    queries = order if config.cp_comm_type == "a2a" else own
    cos, sin = rotary(positions_of(batch, own, mesh.cp), config)
    allowed = visible(queries, order, batch.documents)
    return Context(
        config, mesh, step, microbatch, batch, own, allowed, cos, sin, sequence_weight(config), observer
    )  # fmt: skip


@injection_point
def sequence_weight(config: TrainerConfig) -> float:
    """What one sequence weighs in a mean over the global batch."""
    return 1.0 / config.gbs


@injection_point
def own_positions(length: int, cp: Axis) -> Tensor:
    """Positions of one context-parallel rank: chunk r and its mirror image, which balances causal attention.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/utils.py ``get_batch_on_this_cp_rank``.
    """
    chunks = torch.arange(length).chunk(2 * cp.size)
    return torch.cat([chunks[cp.rank], chunks[2 * cp.size - 1 - cp.rank]]) if cp.size > 1 else torch.arange(length)


@injection_point
def positions_of(batch: Batch, own: Tensor, cp: Axis) -> Tensor:
    """Position ids of the own tokens, shape (S / cp, B)."""
    return batch.positions[:, own].T


def key_order(length: int, cp: Axis) -> Tensor:
    """Positions in the order in which the ranks' shares are joined."""
    return torch.cat([own_positions(length, cp._replace(rank=r)) for r in range(cp.size)])


@injection_point
def visible(queries: Tensor, keys: Tensor, documents: Tensor) -> Tensor:
    """Which keys each query may look at: earlier ones of its own document. Shape (B, 1, queries, keys), bool."""
    causal = keys[None, :] <= queries[:, None]
    same = documents[:, queries, None] == documents[:, None, keys]
    return (causal & same)[:, None]


@injection_point
def rotary(positions: Tensor, config: TrainerConfig) -> tuple[Tensor, Tensor]:
    """cos and sin of rotary embedding, shape (S, B, 1, head / 2), float32, for positions (S, B).

    **Source:** arXiv 2104.09864 (RoFormer), eq. 15.
    """
    half = config.hidden // config.heads // 2
    frequencies = config.rotary_base ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    return angles.cos()[:, :, None], angles.sin()[:, :, None]
