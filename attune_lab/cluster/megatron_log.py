"""Writes a simulated run the way Megatron-LM logs it, so that the readers of real logs read it too."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from attune_lab.contracts import RunReport
from attune_lab.writing import write_file

EPOCH = datetime(2026, 1, 1)
"""Simulated runs have no date; all of them start here, so that a repeated run writes the same bytes."""


def write_log(report: RunReport, path: Path, *, global_batch_size: int, lr: float) -> None:
    """One iteration line per finished step, then the line that ended the run.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``training_log``.
    """
    now = EPOCH + timedelta(seconds=report.startup_s)
    lines = []
    for step, (seconds, loss, norm) in enumerate(
        zip(report.step_times_s, report.loss, report.grad_norm, strict=True), start=1
    ):
        now += timedelta(seconds=seconds)
        lines.append(
            f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/{report.steps:8d} |"
            f" consumed samples: {step * global_batch_size:12d} |"
            f" elapsed time per iteration (ms): {1000 * seconds:.1f} | learning rate: {lr:.6E} |"
            f" global batch size: {global_batch_size:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
            f" grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    lines.append(report.message or f"[exiting program at iteration {report.steps}]")
    write_file(path, ("\n".join(lines) + "\n").encode())
