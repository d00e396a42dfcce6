"""Writes a simulated run the way Megatron-LM logs it, so that the readers of real logs read it too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from attune_lab.contracts import RunReport
from attune_lab.writing import write_file

EPOCH = datetime(2026, 1, 1)
"""Simulated runs have no date; all of them start here, so that a repeated run writes the same bytes."""

_MEMORY_AFTER = 2
"""Iterations after which each stage says how much memory it holds, unless the run is shorter."""

_FRAMES = (
    ("pretrain_gpt.py", "<module>", "pretrain("),
    ("megatron/training/training.py", "pretrain", "iteration, num_floating_point_operations_so_far = train("),
    ("megatron/training/training.py", "train", "train_step("),
    ("megatron/training/training.py", "train_step", "losses_reduced = forward_backward_func("),
)
"""Calls above an error within a step. They go no deeper than what a simulated run knows of its end."""


def write_log(report: RunReport, path: Path, *, global_batch_size: int, lr: float, gpus: int) -> None:
    """The arguments, one iteration line per finished step, memory of each stage, then how the run ended.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py ``_print_args``,
    megatron/training/training.py ``training_log``, megatron/training/utils.py ``report_memory``.
    """
    lines = [
        *_arguments(report, global_batch_size, gpus),
        *_iterations(report, global_batch_size, lr, gpus),
        *_end(report),
    ]
    write_file(path, ("\n".join(lines) + "\n").encode())


def _arguments(report: RunReport, global_batch_size: int, gpus: int) -> Iterator[str]:
    values = {"global_batch_size": global_batch_size, "world_size": gpus}
    if report.tokens_per_step:
        values["seq_length"] = report.tokens_per_step // global_batch_size
    yield "------------------------ arguments ------------------------"
    for name, value in sorted(values.items()):
        yield f"  {name} {'.' * (48 - len(name))} {value}"
    yield "-------------------- end of arguments ---------------------"


def _iterations(report: RunReport, global_batch_size: int, lr: float, gpus: int) -> Iterator[str]:
    now = EPOCH + timedelta(seconds=report.startup_s)
    done = len(report.step_times_s)
    for step, (seconds, loss, norm) in enumerate(
        zip(report.step_times_s, report.loss, report.grad_norm, strict=True), start=1
    ):
        now += timedelta(seconds=seconds)
        yield (
            f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/{report.steps:8d} |"
            f" consumed samples: {step * global_batch_size:12d} |"
            f" elapsed time per iteration (ms): {1000 * seconds:.1f} | learning rate: {lr:.6E} |"
            f" global batch size: {global_batch_size:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
            f" grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if step == min(_MEMORY_AFTER, done):
            yield from _memory(report, step, gpus)


def _memory(report: RunReport, step: int, gpus: int) -> Iterator[str]:
    """What the first rank of each stage has reserved; ranks of a stage are neighbours. It is all a report tells."""
    stages = len(report.peak_memory_bytes)
    for stage, reserved in enumerate(report.peak_memory_bytes):
        mib = reserved / 2**20
        yield f"[Rank {stage * gpus // stages}] (after {step} iterations) memory (MB) | max reserved: {mib:.2f}"


def _end(report: RunReport) -> Iterator[str]:
    """The line that ended the run, under the calls that it was raised from where that is known."""
    if report.status == "oom":
        yield "Traceback (most recent call last):"
        for number, (file, name, code) in enumerate(_FRAMES, start=1):
            yield f'  File "/opt/megatron-lm/{file}", line {number}, in {name}'
            yield f"    {code}"
    yield report.message or f"[exiting program at iteration {report.steps}]"
