"""The gated feed-forward block, divided over tp."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from attune_lab.trainer.context import Context
from attune_lab.trainer.linear import add_bias, into_columns, linear, out_of_rows
from attune_lab.trainer.weights import Builder


class Mlp(nn.Module):
    """SwiGLU. **Source:** arXiv 2002.05202, eq. 6."""

    def __init__(self, name: str, ffn: int, build: Builder) -> None:
        super().__init__()
        config, tp = build.config, build.mesh.tp
        self.gate = build.matrix(f"{name}.gate", ffn, config.hidden, ((0, tp),))
        self.up = build.matrix(f"{name}.up", ffn, config.hidden, ((0, tp),))
        self.down = build.matrix(f"{name}.down", config.hidden, ffn, ((1, tp),))
        self.down_bias = build.bias(f"{name}.down_bias", config.hidden) if config.add_bias_linear else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Hidden states (S', B, H) to the same shape."""
        x = into_columns(x, context)
        inner = F.silu(linear(x, self.gate, context)) * linear(x, self.up, context)
        return add_bias(out_of_rows(linear(inner, self.down, context), context), self.down_bias)
