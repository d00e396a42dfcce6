"""The same test while the runs go on: most faults show within five steps, and the rest of the probe can be saved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attune_lab.gate.bands import PROBE_STEPS
from attune_lab.gate.comparison import Comparison
from attune_lab.gate.loss_tests import loss_tests
from attune_lab.gate.norm_tests import norm_tests
from attune_lab.gate.verdict import Check

LOOKS = (1, 3, 5, 10, PROBE_STEPS)


@dataclass(frozen=True)
class Sequential:
    """The first look that decided.

    Attributes:
        step: the step after which a rejection was certain, None while the pair is open.
        checks: what rejected it.
    """

    step: int | None
    checks: tuple[Check, ...] = ()


def sequential(pair: Comparison) -> Sequential:
    """When the pair was decided, looking after the steps of `LOOKS`.

    Step 1 and the envelope bound every step by itself, so that looking early adds no rejection which the whole run
    would not bring. A mean over few steps is more uncertain: its limit starts wide and reaches its final value with the
    last look, so that all looks together spend hardly more of the allowance than the last one alone.

    **Source:** O'Brien and Fleming, Biometrics 35 (1979): boundaries proportional to sqrt(K / k).
    """
    for look in LOOKS:
        if look < pair.base.steps[0]:
            continue
        if look > pair.base.steps[-1]:
            break
        so_far = pair.until(look)
        rejections = [c for c in every_test(so_far, spent=math.sqrt(PROBE_STEPS / look)) if c.outcome == "reject"]
        if rejections:
            return Sequential(look, tuple(rejections))
    return Sequential(None)


def every_test(pair: Comparison, *, spent: float = 1.0) -> list[Check]:
    """The checks of losses and norms."""
    return [*loss_tests(pair, spent=spent), *norm_tests(pair, spent=spent)]
