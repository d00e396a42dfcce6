"""What the first steps of a run show that the gate would not let pass, long before it has steps enough to say so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from attune_lab.contracts import RunReport

GRADIENT_FACTOR = 1.25
"""Legitimate layouts move the first gradient norm by up to 10 % (NVIDIA-NeMo/Megatron-Bridge#5411). Beyond this
factor gradients are scaled, lost or counted twice, and the gate would not let the recipe pass."""

LOSS_DRIFT = 1.2e-3
"""Legitimate changes part the losses of the first steps by less on average; the gate allows 1e-3 over 20 steps to the
most invasive of them, another dispatcher (`attune_lab.gate.bands`), and would not let the recipe pass."""


def early_fault(baselines: Sequence[RunReport], run: RunReport) -> str:
    """``scaled gradients`` or ``another loss`` where a run shows that beside the baseline's runs, else empty."""
    if _scales_gradients(baselines, run):
        return "scaled gradients"
    return "another loss" if _moves_the_loss(baselines, run) else ""


def _scales_gradients(baselines: Sequence[RunReport], run: RunReport) -> bool:
    """Whether the first gradient norm is not the baseline's: a fault that Adam hides from the loss."""
    norms = next((baseline.grad_norm for baseline in baselines if baseline.grad_norm), ())
    if not norms or not run.grad_norm or min(norms[0], run.grad_norm[0]) <= 0:
        return False
    return abs(math.log(run.grad_norm[0] / norms[0])) > math.log(GRADIENT_FACTOR)


def _moves_the_loss(baselines: Sequence[RunReport], run: RunReport) -> bool:
    """Whether the loss leaves the baseline's to one side, as rounding does not."""
    losses = next((baseline.loss for baseline in baselines if baseline.loss), ())
    pairs = list(zip(losses, run.loss, strict=False))
    apart = [math.log(new / old) for old, new in pairs[len(pairs) // 2 :] if old > 0 and new > 0]
    return bool(apart) and abs(statistics.fmean(apart)) > LOSS_DRIFT
