"""The log lines of a run, in the format of Megatron-LM.

**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``training_log``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point


@injection_point
def log_line(step: int, seconds: float, figures: Mapping[str, float], config: TrainerConfig, skipped: int) -> str:
    """The line of one step; ``figures`` by the log's names."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    parts = [
        f" [{now}] iteration {step:8d}/{config.train_iters:8d}",
        f"consumed samples: {step * config.gbs:12d}",
        f"elapsed time per iteration (ms): {seconds * 1e3:.1f}",
        f"learning rate: {figures['learning rate']:.6E}",
        f"global batch size: {config.gbs:5d}",
    ]
    parts += [f"{name}: {v:.6E}" for name, v in figures.items() if name not in ("learning rate", "grad norm")]
    parts += [
        "loss scale: 1.0",
        f"grad norm: {figures['grad norm']:.6f}",
        f"number of skipped iterations: {skipped:3d}",
        "number of nan iterations:   0",
    ]
    return " | ".join(parts) + " |"
