"""Which kind of fault a deviation points at: words for a person, chosen from where the deviation is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

SAME_FACTOR = 0.02
"""Two log ratios this close are the same factor; no two layout sizes are closer."""

SIZES = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp", "dp": "dp", "mbs": "micro-batch size"}


class Family(StrEnum):
    """Kinds of faults by their place in a training step."""

    BATCH = "data: samples lost, repeated or in another order"
    LABELS = "loss definition: labels or loss mask"
    POSITIONS = "mask: positions or document borders"
    ATTENTION = "attention: mask, positions, scale or backward"
    LOSS = "loss definition or normalisation"
    SCALE = "gradient scale: wrong divisor or wrong group of an average"
    REDUCTION = "missing or partial reduction of a gradient"
    TIED = "embedding or head: tied copies or vocabulary shards"
    EXPERTS = "expert gradients: reduced over the wrong ranks"
    ROUTER = "router or auxiliary loss"
    MTP = "MTP loss or its gradient"
    CLIPPING = "clipping: gradient norm counted wrongly"
    STALE = "stale weights in the forward"
    FROZEN = "lost gradient: weights that do not train"
    OPTIMIZER = "optimizer or schedule"
    PRECISION = "precision of weights, gradients or moments"
    DROPPED = "tokens dropped or misrouted"
    LOGGING = "logged value wrong, training may be right"
    RACE = "race: not repeatable"
    RESUME = "checkpoint or resume"
    START = "other initial weights"
    RNG = "random numbers of dropout"


_BY_GROUP = {
    "embedding": Family.TIED,
    "head": Family.TIED,
    "norm": Family.REDUCTION,
    "attention": Family.ATTENTION,
    "router": Family.ROUTER,
    "experts": Family.EXPERTS,
    "shared_experts": Family.EXPERTS,
    "mtp": Family.MTP,
}


def family_of(ratios: Mapping[str, float], groups: int) -> Family:
    """The likely family of gradients that deviate.

    Args:
        ratios: log ratio of the gradient norm of each deviating group, the worst first.
        groups: how many groups the model has; 0 when it may not be one fault of all of them.
    """
    values = list(ratios.values())
    if 2 * len(values) > groups > 1:
        same = all(math.isfinite(v) for v in values) and max(values) - min(values) < SAME_FACTOR
        return Family.SCALE if same and abs(values[0]) > SAME_FACTOR else Family.LOSS
    if values == [-math.inf] * len(values):
        return Family.FROZEN
    if set(ratios) <= {"norm", "router"} and len(ratios) > 1:
        return Family.REDUCTION
    return _BY_GROUP.get(next(iter(ratios)), Family.REDUCTION)


def factor_name(ratio: float, settings: Mapping[str, Any]) -> str:
    """``ratio`` as a small factor of the layout, e.g. ``1/2 = 1/tp``; empty where it is none.

    Args:
        ratio: candidate's norm / baseline's.
        settings: the candidate's settings in force.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        return ""
    sizes = _sizes(settings)
    for value in sorted({2, 4, 8, *sizes.values()} - {0, 1}):
        names = [name for name, size in sizes.items() if size == value]
        if abs(math.log(ratio / value)) < SAME_FACTOR:
            return " = ".join([str(value), *names])
        if abs(math.log(ratio * value)) < SAME_FACTOR:
            return " = ".join(f"1/{name}" for name in (value, *names))
    return ""


def _sizes(settings: Mapping[str, Any]) -> dict[str, int]:
    """Integer sizes a faulty divisor may hold, by name."""
    sizes = {name: settings[key] for key, name in SIZES.items() if _is_size(settings.get(key))}
    batch: list[Any] = [settings.get(key) for key in ("gbs", "mbs", "dp")]
    if all(map(_is_size, batch)):
        sizes["micro-batches"] = batch[0] // (batch[1] * batch[2])
    return sizes


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
