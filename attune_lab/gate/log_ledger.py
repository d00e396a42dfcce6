"""What two Megatron-LM logs print besides loss and norm: columns that must be equal, step by step.

A log-only gate has no tensors, but learning rate, batch size and samples consumed are printed with every step and do
not depend on kernels, so that any difference in them is one of the runs' settings or of their data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from attune_lab.gate.curves_io import printed_quantum
from attune_lab.gate.evidence.families import Family
from attune_lab.gate.verdict import Check

Log = Mapping[int, Mapping[str, str]]
"""Columns by name, of every step."""

EQUAL = {
    "learning rate": Family.OPTIMIZER,
    "global batch size": Family.BATCH,
    "consumed samples": Family.BATCH,
    "number of skipped iterations": Family.OPTIMIZER,
    "number of nan iterations": Family.PRECISION,
}
"""**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``training_log``."""

FACTOR = 1.25
"""Auxiliary losses of another layout or micro-batch are a few per cent apart; one counted twice is 2 times as large."""


def check(baseline: Log, candidate: Log) -> list[Check]:
    """The checks of the columns both logs have, at the steps both have; none where one is no log."""
    steps = sorted(baseline.keys() & candidate.keys())
    pairs = {step: (baseline[step], candidate[step]) for step in steps}
    return [check for name in EQUAL for check in _equal(name, pairs)] + list(_other_losses(pairs))


Pairs = Mapping[int, tuple[Mapping[str, str], Mapping[str, str]]]


def _equal(name: str, pairs: Pairs) -> Iterator[Check]:
    """The check of one column: the first step at which the printed values cannot be the same number."""
    texts = {step: (old[name], new[name]) for step, (old, new) in pairs.items() if name in old and name in new}
    key = f"ledger.log.{name.replace(' ', '_')}"
    for step, (old, new) in texts.items():
        if old != new and not _same_number(old, new):
            reason = f"The log prints a {name} of {new[:40]} at step {step}, the baseline's {old[:40]}."
            yield Check(key, "reject", reason, {"step": float(step)}, EQUAL[name])
            return
    if texts:
        yield Check(key, "pass", f"The logs print the same {name} at all {len(texts)} steps.")


def _other_losses(pairs: Pairs) -> Iterator[Check]:
    """Losses of other heads and of the router at the first step, where only a factor proves a fault."""
    if not pairs:
        return
    step, (old, new) = next(iter(pairs.items()))
    names = {name for name in old.keys() & new.keys() if name.endswith("loss")} - {"lm loss"}
    for name in sorted(names):
        before, after = _number(old[name]), _number(new[name])
        if before is None or after is None or before <= 0 or after <= 0:
            continue
        ratio, printed = after / before, (printed_quantum(old[name]) + printed_quantum(new[name])) / min(before, after)
        figures = {"ratio": ratio, "limit": FACTOR * (1 + printed)}
        key, what = f"ledger.log.{name.replace(' ', '_')}", f"The {name} printed at step {step} is {ratio:.3g} times"
        if abs(math.log(ratio)) > math.log(figures["limit"]):
            family = Family.MTP if name.startswith("mtp") else Family.ROUTER
            yield Check(key, "reject", f"{what} the baseline's. Likely {family}.", figures, family)
        else:
            yield Check(key, "pass", f"{what} the baseline's.", figures)


def _same_number(old: str, new: str) -> bool:
    """Whether two different texts may be prints of one number, with more digits and with fewer."""
    a, b = _number(old), _number(new)
    if a is None or b is None:
        return False
    fine, coarse = sorted((printed_quantum(old), printed_quantum(new)))
    return a == b or (fine < coarse and abs(a - b) <= 0.51 * coarse)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
