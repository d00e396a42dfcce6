"""The learning rate that settings prescribe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NEEDED = ("lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_warmup_iters")


def learning_rate(updates: int, settings: Mapping[str, Any]) -> float | None:
    """The rate after ``updates`` steps of the schedule; None where the settings do not say enough.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/optimizer_param_scheduler.py ``get_lr``, for schedules in
    iterations that are constant, linear or cosine.
    """
    if any(settings.get(name) is None for name in NEEDED):
        return None
    highest, lowest, style, end, warmup = (settings[name] for name in NEEDED)
    if warmup > 0 and updates <= warmup:
        return float(highest * updates / warmup)
    if style == "constant":
        return float(highest)
    if style not in ("linear", "cosine"):
        return None
    if updates > end or end <= warmup:
        return float(lowest)
    done = (updates - warmup) / (end - warmup)
    left = 1.0 - done if style == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return float(lowest + left * (highest - lowest))
