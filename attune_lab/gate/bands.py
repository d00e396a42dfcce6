"""How far two curves may part when only performance settings differ: the limits the convergence check holds them to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from attune_lab.gate.curve import Curve, Floats

PROBE_STEPS = 20
STILL = 0.6
"""Share of the envelope that holds where the loss has not fallen: a model that has not moved cannot have parted far."""
STILL_MEAN = 0.12
"""The same of the mean difference."""
FULL_FALL = 0.1
"""Every such fall of log(loss) adds another whole limit, up to one."""
CHAOTIC = 5.0
"""From this multiple of the probe's steps on the envelope grows with the step itself: two runs are then two samples of
one recipe (recorded runs of one recipe differ by 8e-3 at step 280 and 1.6e-2 at step 1000)."""


class Change(StrEnum):
    """The most invasive kind of legitimate change between two recipes."""

    SAME_KERNELS = "same_kernels"  # overlap, buckets, graphs, recomputation, pipeline schedule
    REORDERED = "reordered"  # micro-batch, layout, fused kernels: sums in another order
    DISPATCHER = "dispatcher"  # another MoE dispatch and combine
    LOW_PRECISION = "low_precision"  # approved FP8 or FP4


@dataclass(frozen=True)
class Band:
    """Largest legitimate differences: of the loss (relative) and of gradient norms (log ratio)."""

    step_1: float
    envelope: float  # at step 20 of a run that learns, see `growth`
    bias: float
    norm: float

    def widened(self, by: Band) -> Band:
        """The band with another's limits added."""
        return Band(self.step_1 + by.step_1, self.envelope + by.envelope, self.bias + by.bias, self.norm + by.norm)

    def least(self, other: Band) -> Band:
        """The tighter of each limit."""
        return Band(
            min(self.step_1, other.step_1), min(self.envelope, other.envelope), min(self.bias, other.bias),
            min(self.norm, other.norm),
        )  # fmt: skip


NO_ALLOWANCE = Band(0.0, 0.0, 0.0, 0.0)
CALIBRATED = Band(1e-4, 2e-3, 2e-4, 0.005)
"""Least limits where twins say the rest: no twin shows every legitimate kernel (bfloat16 moves step 1 by 1e-4)."""

QUIET = Band(1e-5, 6e-4, 2e-4, 0.002)
"""Limits of two runs whose loss and gradient norm of step 1 agree to `QUIET_LOSS` and `QUIET_NORM`."""
QUIET_CALIBRATED = Band(1e-5, 3e-4, 1e-4, 0.002)
"""The same where twins say how far such runs part."""
QUIET_LOSS = 2e-6
QUIET_NORM = 5e-5
"""Kernels that round differently in bfloat16 move the gradient norm of step 1 by 1e-4 and part by 2 % of the fall of
the loss, those that only add in another order by 1e-5 and 0.4 %, float32 by 1e-8 and 0.002 %: a small transformer on
one CPU (3 layers, width 64, 20 steps, 78 legitimate pairs)."""

BANDS = {
    Change.SAME_KERNELS: Band(1e-5, 1e-3, 1e-4, 0.002),
    Change.REORDERED: Band(2e-4, 2.5e-3, 3e-4, 0.01),
    Change.DISPATCHER: Band(2e-4, 5e-3, 1e-3, 0.02),
    Change.LOW_PRECISION: Band(5e-3, 1.5e-2, 5e-3, 0.15),
}
"""**Source:** differences of Megatron-LM's recorded test curves within 25 steps (NVIDIA/Megatron-LM@d98e8a64
tests/functional_tests/test_cases, one half of the cases): of 187 pairs of one commit that start from the same weights,
differ in performance settings alone and have the same dropout masks, 99 % stay below 5.8e-5 at step 1, 3.2e-4 as
largest and 1.3e-4 as mean difference, 95 % below 1.8e-5 as largest; dispatchers 4.8e-3 on average (#1603); FP8 0.25 %
late (arXiv 2412.19437) and 1.8e-2 early (one recorded pair). `REORDERED` leaves room for the higher learning rates of
small models, see `QUIET_NORM`."""

FP8 = Band(3e-4, 0.0, 0.0, 0.0)
"""What two FP8 runs add at step 1: another split of a tensor is another scale of its parts (2.6e-4 between legitimate
layouts of the project's trainer)."""

MASKS = Band(1.2e-3, 2e-3, 3e-4, 0.02)
"""What other dropout masks add, from the first step on.

**Source:** the same recorded curves: of 88 pairs with dropout on whose masks may differ, 99 % stay below 6.0e-4 at step
1, 1.4e-3 as largest and 3.3e-4 as mean difference; the largest is 2.5e-3.
"""


def moved(base: Curve, still: float = STILL) -> Floats:
    """Share of a limit that the fall of the loss since the first step allows at each step, shape (T,)."""
    fall = np.log(base.loss[0]) - np.log(np.minimum.accumulate(base.loss))
    return np.asarray(np.minimum(1.0, still + fall / FULL_FALL))


def growth(base: Curve) -> Floats:
    """Share of ``Band.envelope`` that holds at each step of a run, shape (T,).

    Rounding makes a random walk of the weights, hence the root of the step; and the loss shows it as far as the weights
    have come at all, hence the fall of the loss.
    """
    time = base.steps / PROBE_STEPS
    return np.asarray(np.sqrt(time) * np.sqrt(np.maximum(1.0, time / CHAOTIC)) * moved(base))
