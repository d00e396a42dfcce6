"""Activation bytes that one layer keeps between forward and backward, per token and rank.

Each kept tensor is one `Kept` row: what it weighs, which layers have it, and which recomputation or offload
drops it. Shapes: B jobs; a weight is bytes per token of a micro-batch on one rank, shape (B,).

**Source:** arXiv 2205.05198 section 4 for the dense layer with sequence parallelism; the tensors that
Transformer Engine and Megatron-Core 0.14 save for MLA and MoE layers, read in their modules. With attention
fused, BF16 and no dropout a dense gated layer keeps (8h + 4ad + 4gd + 6f) / (tp cp) bytes per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.job import Jobs, Offload, Precision, Recompute, has, hidden_shards, offloaded_share, once
from simulator.memory_physics import MemoryPhysics
from simulator.models.shape import ModelShape, layer_kinds
from simulator.recording import recorded

Floats = NDArray[np.float64]

ATTENTION, MLP, MOE, MAMBA = PARTS = ("attention", "mlp", "moe", "mamba")
"""What a decoder layer is made of, each with the norm in front of it: attention (or Mamba) and an MLP or experts."""

# Bytes per element of a GEMM input that is kept in the GEMM's own format; block scales included.
GEMM_INPUT_BYTES = {
    Precision.BF16: 2.0,
    Precision.FP16: 2.0,
    Precision.FP8_TENSORWISE: 1.0,
    Precision.FP8_DELAYED: 1.0,
    Precision.FP8_BLOCKWISE: 1.0 + 4 / 128,
    Precision.MXFP8: 1.0 + 1 / 32,
    Precision.NVFP4: 0.5 + 1 / 16,
}
_GEMM_INPUT = np.array([GEMM_INPUT_BYTES[precision] for precision in sorted(Precision)])


@dataclass(frozen=True)
class Kept:
    """One kept tensor: its name, the part that has it, its bytes per token, shape (B,), and what drops it."""

    name: str
    part: str
    bytes: Floats
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE

    @recorded
    def kept(self, jobs: Jobs, stays: Floats) -> Floats:
        """Bytes per token between forward and backward, shape (B,), where ``stays`` of each tensor is not offloaded.

        FULL is not looked at here: it keeps whole layers or nothing but their input (see `kept_fully_recomputed`).
        """
        stored = stays * self.bytes
        for bits, flag in ((jobs.recompute, self.recompute), (jobs.offload, self.offload)):
            if flag:
                stored = np.where(has(bits, flag), 0.0, stored)
        return stored


@dataclass(frozen=True)
class Activations:
    """Bytes per token of one layer's parts by `PARTS`, shapes (B,).

    Attributes:
        kept: between forward and backward.  full: without recomputation and offload, which is what a layer holds
            while it is being recomputed.
    """

    kept: dict[str, Floats]
    full: dict[str, Floats]


def parts_of(shape: ModelShape) -> tuple[str, ...]:
    """The `PARTS` that layers of a model have; attention always."""
    kinds = layer_kinds(shape)
    mlp = kinds.dense or (shape.mtp_layers and not kinds.moe)
    return (ATTENTION, *(part for part, has in ((MLP, mlp), (MOE, kinds.moe), (MAMBA, kinds.mamba)) if has))


@recorded
def part_activations(jobs: Jobs, physics: MemoryPhysics) -> Activations:
    """What the parts of one layer keep per token of a micro-batch; a part the model does not have keeps nothing."""
    kept = {part: np.zeros(jobs.size) for part in PARTS}
    full, stays = dict(kept), 1 - offloaded_share(jobs)
    for row in _tensors(jobs, physics):
        kept[row.part] = kept[row.part] + row.kept(jobs, stays)
        full[row.part] = full[row.part] + row.bytes
    return Activations(kept, full)


def kept_fully_recomputed(jobs: Jobs) -> Floats:
    """Bytes per token that a fully recomputed layer keeps, its BF16 input, shape (B,)."""
    kept: Floats = (1 - offloaded_share(jobs)) * 2.0 * jobs.model.hidden / hidden_shards(jobs)
    return kept


@once
def routed_copies(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Expert inputs per token on the fullest rank, shape (B,): top_k, times imbalance or capacity, over tp.

    Expert tensor parallelism gathers the tokens of its ranks, which multiplies the copies by etp.
    """
    natural = np.where(jobs.force_balance | (jobs.ep == 1), 1.0, physics.routing_imbalance)
    load = np.where(jobs.capacity_factor > 0, jobs.capacity_factor, natural)
    copies: Floats = jobs.model.top_k * load * jobs.etp / jobs.tp
    return copies


def _tensors(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    parts = parts_of(jobs.model)
    rows = _attention(jobs, physics)
    rows += _mlp(jobs, physics) if MLP in parts else []
    rows += _moe(jobs, physics) if MOE in parts else []
    return rows + (_mamba(jobs, physics) if MAMBA in parts else [])


def _norm(jobs: Jobs, part: str, physics: MemoryPhysics) -> list[Kept]:
    """A norm's input, and its output where it feeds a GEMM."""
    hidden = jobs.model.hidden / hidden_shards(jobs)
    return [
        Kept("input of the norm", part, 2.0 * hidden),
        Kept("output of the norm", part, _gemm_input(jobs, physics) * hidden, Recompute.LAYERNORM),
    ]


def _attention(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    shape, gemm_input, shards = jobs.model, _gemm_input(jobs, physics), hidden_shards(jobs)
    heads = shape.heads / jobs.tp
    # Softmax statistics in FP32 when fused; otherwise scores, softmax and its dropout mask, 5 bytes a pair.
    pairs = np.where(jobs.fused_attention, 4.0, 5.0 * jobs.seq_len / jobs.cp) * heads
    rows = [*_norm(jobs, ATTENTION, physics), Kept("softmax", ATTENTION, pairs, Recompute.CORE_ATTN)]
    rebuilt = Recompute.NONE
    if shape.attention == "mla":
        latents = 2 * (shape.q_lora_rank + shape.kv_lora_rank) + shape.qk_rope_dim  # before and after their norms
        indexed = (shape.index_heads + 1) * shape.index_head_dim + 2 * shape.index_topk  # and the chosen keys, INT32
        rows.append(Kept("latents", ATTENTION, 2.0 * (latents + indexed * (shape.index_heads > 0)) / shards))
        qkv, output = heads * (2 * (shape.qk_nope_dim + shape.qk_rope_dim) + shape.v_dim), heads * shape.v_dim
        rebuilt = Recompute.MLA_UP_PROJ
    else:
        groups = np.maximum(shape.kv_heads / jobs.tp, 1)  # fewer groups than ranks: each rank keeps one
        qkv, output = (heads + 2 * groups) * shape.head_dim, heads * shape.head_dim
    # The output serves fused attention's own backward in BF16, and the projection in the format of its GEMM.
    narrow_copy = np.where(gemm_input < 2.0, gemm_input, 0.0)
    return [
        *rows,
        Kept("q, k, v", ATTENTION, 2.0 * qkv, rebuilt, Offload.CORE_ATTN),
        Kept("output", ATTENTION, (2.0 + narrow_copy) * output, offload=Offload.ATTN_PROJ),
        Kept("copies of q, k, v", ATTENTION, physics.attention_copies * 2.0 * qkv),
    ]


def _mlp(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    ffn = jobs.model.ffn / jobs.tp
    up = 2 + physics.activation_inputs if jobs.model.gated_mlp else 1
    return [
        *_norm(jobs, MLP, physics),
        Kept("input of the activation", MLP, 2.0 * up * ffn, Recompute.MLP),
        Kept("output of the activation", MLP, _gemm_input(jobs, physics) * ffn, Recompute.MLP),
    ]


def _moe(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    shape, gemm_input = jobs.model, _gemm_input(jobs, physics)
    copies = routed_copies(jobs, physics)
    up = 2 if shape.gated_mlp else 1
    width = shape.moe_latent or shape.hidden
    ffn, shared = shape.moe_ffn / jobs.etp, shape.shared_ffn / jobs.tp
    tokens = 1 / hidden_shards(jobs)
    return [
        *_norm(jobs, MOE, physics),
        Kept("dispatched tokens", MOE, copies * gemm_input * width, Recompute.MOE, Offload.EXPERT_FC1),
        Kept("input of the activation", MOE, copies * 2.0 * up * ffn, Recompute.MOE, Offload.MOE_ACT),
        Kept("output of the activation", MOE, copies * gemm_input * ffn, Recompute.MOE | Recompute.MOE_ACT),
        Kept("outputs of experts", MOE, copies * physics.expert_output_kept * 2.0 * width, Recompute.MOE),
        Kept("latent input and output", MOE, tokens * 4.0 * shape.moe_latent, Recompute.MOE),
        Kept("shared experts", MOE, (2.0 * up + gemm_input) * shared, Recompute.MOE | Recompute.SHARED_EXPERTS),
        Kept("router logits and probabilities", MOE, tokens * 4.0 * shape.experts, Recompute.MOE),
    ]


def _mamba(jobs: Jobs, physics: MemoryPhysics) -> list[Kept]:
    """A Mamba-2 mixer: the input projection's output, the scan's output, and that gated and normed.

    **Source:** state-spaces/mamba mamba_ssm/ops/triton/ssd_combined.py, what ``MambaSplitConv1dScanCombinedFn``
    saves; Megatron-Core core/ssm/mamba_mixer.py.
    """
    shape = jobs.model
    inner = shape.mamba_heads * shape.mamba_head_dim / jobs.tp
    projected = 2 * inner + (2 * shape.mamba_groups * shape.mamba_state + shape.mamba_heads) / jobs.tp
    return [
        *_norm(jobs, MAMBA, physics),
        Kept("output of the input projection", MAMBA, 2.0 * projected),
        Kept("output of the scan", MAMBA, 2.0 * inner),
        Kept("gated and normed", MAMBA, _gemm_input(jobs, physics) * inner),
    ]


@once
def _gemm_input(jobs: Jobs, physics: MemoryPhysics) -> Floats:
    """Bytes per element of a GEMM's input as it is kept for the backward pass, shape (B,)."""
    width: Floats = _GEMM_INPUT[jobs.precision]
    if not physics.wide_inputs:
        return width
    return np.where(jobs.precision == Precision.NVFP4, width, width + physics.wide_inputs * (2.0 - width))
