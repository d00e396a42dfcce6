"""The levers of a job that are one of several kinds, and the names that stacks give them."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import TypeVar

E = TypeVar("E", bound=type[Enum])


def _at_hand(kind: E) -> E:
    """``kind`` with its members as plain attributes, as from Python 3.12 on: looking one up took a microsecond.

    Columns are compared with ``int(member)``, for numpy takes several times as long to compare with the member.
    """
    for name, member in kind.__members__.items():
        type.__setattr__(kind, name, member)
    return kind


@_at_hand
class Precision(IntEnum):
    """Number format of the large GEMMs; everything else stays BF16 with FP32 main weights."""

    BF16 = 0
    FP8_TENSORWISE = 1  # current scaling
    FP8_DELAYED = 2
    FP8_BLOCKWISE = 3
    MXFP8 = 4
    NVFP4 = 5
    FP16 = 6


@_at_hand
class Recompute(IntFlag):
    """What is recomputed in the backward pass. FULL excludes the others."""

    NONE = 0
    CORE_ATTN = 1
    MOE_ACT = 2
    LAYERNORM = 4
    MLA_UP_PROJ = 8
    MLP = 16
    MOE = 32
    SHARED_EXPERTS = 64
    FULL = 128


@_at_hand
class Dispatcher(IntEnum):
    """How MoE tokens travel between expert-parallel ranks."""

    ALLGATHER = 0
    ALLTOALL = 1
    DEEPEP = 2
    HYBRIDEP = 3


@_at_hand
class Graph(IntFlag):
    """Parts captured in CUDA graphs."""

    NONE = 0
    ATTN = 1
    MLP = 2
    MOE_ROUTER = 4
    MOE_PREPROCESS = 8
    MOE = 16
    FULL_ITERATION = 32
    MAMBA = 64


@_at_hand
class Offload(IntFlag):
    """Activations moved to host memory between forward and backward."""

    NONE = 0
    CORE_ATTN = 1
    ATTN_PROJ = 2
    EXPERT_FC1 = 4
    MOE_ACT = 8
    LAYER = 16


RECOMPUTE_MODULES: dict[str, Recompute] = {
    "core_attn": Recompute.CORE_ATTN,
    "moe_act": Recompute.MOE_ACT,
    "layernorm": Recompute.LAYERNORM,
    "mla_up_proj": Recompute.MLA_UP_PROJ,
    "mlp": Recompute.MLP,
    "moe": Recompute.MOE,
    "shared_experts": Recompute.SHARED_EXPERTS,
}
"""Megatron-Core's names of what can be recomputed."""

GRAPH_PARTS: dict[str, Graph] = {
    "attn": Graph.ATTN,
    "mamba": Graph.MAMBA,
    "mlp": Graph.MLP,
    "moe": Graph.MOE,
    "moe_router": Graph.MOE_ROUTER,
    "moe_preprocess": Graph.MOE_PREPROCESS,
    "full": Graph.ATTN | Graph.MAMBA | Graph.MLP | Graph.MOE,
    "full_iteration": Graph.FULL_ITERATION,
}
"""Names of what CUDA graphs can capture."""


@_at_hand
class Schedule(IntEnum):
    """Order in which a pipeline stage works through its micro-batches.

    **Source:** PipeDream-flush and interleaving arXiv 2104.04473, GPipe 1811.06965 (interleaved: breadth-first,
    2211.05953), ZB-H1 2401.10241, ZB-V 2405.15362, DualPipe 2412.19437; V shape of it: torch ``ScheduleDualPipeV``.
    """

    ONE_F_ONE_B = 0  # one forward, one backward; interleaved where vpp is above 1
    GPIPE = 1  # all forwards, then all backwards
    ZB_H1 = 2  # 1F1B with weight gradients moved into the idle times
    ZB_V = 3  # zero bubble over two chunks a stage, placed down and up again; vpp is not read
    DUALPIPE = 4  # micro-batches enter from both ends, so that a rank holds two stages
    DUALPIPE_V = 5  # the same over two chunks a stage, placed down and up again; vpp is not read
