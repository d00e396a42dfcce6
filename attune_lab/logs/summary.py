"""The figures of a log that a person asks for first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attune_lab.logs.contract import LoggedStep, TrainingLog

WARMUP = 3
"""Steps that are not timed: compilation, autotuning and the first allocations."""

AGREEMENT = 0.05
"""A rate that a log prints may be an average over other steps than those timed here."""

CONVENTIONS: Mapping[str, str] = {
    "megatron-lm": "Megatron-LM's count of model FLOPs per GPU, recomputation not counted",
    "megatron-bridge": "Megatron-Bridge's MODEL_TFLOP/s/GPU, recomputation not counted",
    "torchtitan": "torchtitan's count of model FLOPs per device, embeddings and recomputation not counted",
    "nemo": "NeMo's TFLOPS_per_GPU",
    "nanotron": "nanotron's model_tflops_per_gpu",
}
"""Whose count of FLOPs a log prints: counts of one model differ between stacks by tens of per cent."""

_SKIPPED = "number of skipped iterations"
_SKIPPED_SO_FAR = "skipped so far"
_NAN = "number of nan iterations"


@dataclass(frozen=True)
class Summary:
    """A log in figures; None where it does not print what is needed. Times and rates are of the timed steps.

    Attributes:
        steps: lines of steps; first_step, last_step their range.
        timed_steps: lines behind the times and rates, warm-up excluded.
        step_time_s: median; step_time_quartiles_s: first and third quartile, which is the spread.
        tokens_per_s_per_gpu: median of what the log prints, else from the step time.
        tokens_per_s: of the whole job.
        tokens_from: ``log`` or ``step time``.
        model_tflops_per_gpu: median of what the log prints; flops_convention says by whose count.
        peak_memory_bytes: reserved, of the fullest rank printed.
        loss_first, loss_last: as printed.
        skipped_steps, nan_steps: as counted by the stack.
        straggler: the slowest rank against the fastest, a sentence.
        disagreement: that the rate which the log prints is not what tokens, GPUs and step time come to, a sentence.
    """

    steps: int
    first_step: int | None = None
    last_step: int | None = None
    timed_steps: int = 0
    step_time_s: float | None = None
    step_time_quartiles_s: tuple[float, float] | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    tokens_from: str | None = None
    model_tflops_per_gpu: float | None = None
    flops_convention: str | None = None
    peak_memory_bytes: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    skipped_steps: int | None = None
    nan_steps: int | None = None
    straggler: str | None = None
    disagreement: str | None = None


def summarise(
    log: TrainingLog, *, warmup: int = WARMUP, gpus: int | None = None, tokens_per_step: float | None = None
) -> Summary:
    """The figures of a log.

    Args:
        log: as read.
        warmup: steps that are not timed.
        gpus, tokens_per_step: of the job, where the log does not say them; they go before what it says.
    """
    if not log.steps:
        return Summary(0, peak_memory_bytes=max(log.memory_bytes.values(), default=None))
    timed = timed_steps(log.steps, warmup)
    seconds = _median(timed, lambda step: step.step_time_s)
    claimed = _median(timed, lambda step: step.tokens_per_s_per_gpu)
    gpus, tokens = gpus or log.gpus, tokens_per_step or log.tokens_per_step
    total = tokens / seconds if tokens and seconds else None
    rate, source = (claimed, "log") if claimed is not None else (None, None)
    if rate is None and total and gpus:
        rate, source = total / gpus, "step time"
    tflops = _median(timed, lambda step: step.model_tflops_per_gpu)
    losses = [step.loss for step in log.steps if step.loss is not None]
    return Summary(
        steps=len(log.steps),
        first_step=log.steps[0].step,
        last_step=log.steps[-1].step,
        timed_steps=len(timed),
        step_time_s=seconds,
        step_time_quartiles_s=_quartiles(
            [s.step_time_s for s in timed if s.step_time_s is not None and math.isfinite(s.step_time_s)]
        ),
        tokens_per_s_per_gpu=rate,
        tokens_per_s=total or (rate * gpus if rate and gpus else None),
        tokens_from=source,
        model_tflops_per_gpu=tflops,
        flops_convention=None if tflops is None else CONVENTIONS.get(log.stack),
        peak_memory_bytes=max(log.memory_bytes.values(), default=None),
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        skipped_steps=_skipped(log.steps),
        nan_steps=_count(log.steps, _NAN),
        straggler=_straggler(log.round_trip_s),
        disagreement=_disagreement(claimed, total / gpus if total and gpus else None),
    )


def _disagreement(claimed: float | None, worked_out: float | None) -> str | None:
    if not claimed or not worked_out or abs(worked_out / claimed - 1) <= AGREEMENT:
        return None
    return (
        f"the log prints {claimed:,.0f} tokens/s/GPU, but tokens per step, GPUs and step time come to "
        f"{worked_out:,.0f}: check what is said of tokens per step and GPUs"
    )


def timed_steps(steps: Sequence[LoggedStep], warmup: int = WARMUP) -> tuple[LoggedStep, ...]:
    """The lines that stand for no step of the warm-up.

    A line stands for all steps since the line before, so that one printed every ten steps holds the warm-up in its
    first line alone.
    """
    if not warmup:
        return tuple(steps)
    if len(steps) < 2:
        return ()
    start = steps[0].step - (steps[1].step - steps[0].step)
    return tuple(step for before, step in pairwise(steps) if before.step >= start + warmup)


def _median(steps: Sequence[LoggedStep], figure: Callable[[LoggedStep], float | None]) -> float | None:
    values = [value for step in steps if (value := figure(step)) is not None and math.isfinite(value)]
    return statistics.median(values) if values else None


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _count(steps: Sequence[LoggedStep], column: str) -> int | None:
    values = [step.other[column] for step in steps if column in step.other]
    return _whole(sum(values)) if values else None


def _skipped(steps: Sequence[LoggedStep]) -> int | None:
    """Megatron counts since the line before, DeepSpeed since the start."""
    so_far = [step.other[_SKIPPED_SO_FAR] for step in steps if _SKIPPED_SO_FAR in step.other]
    return _whole(so_far[-1]) if so_far else _count(steps, _SKIPPED)


def _whole(count: float) -> int | None:
    return int(count) if math.isfinite(count) else None  # a log may print anything


def _straggler(round_trip_s: Mapping[int, float]) -> str | None:
    if len(round_trip_s) < 2:
        return None
    fast, slow = min(round_trip_s, key=round_trip_s.__getitem__), max(round_trip_s, key=round_trip_s.__getitem__)
    lag = round_trip_s[slow] / round_trip_s[fast] - 1 if round_trip_s[fast] > 0 else 0.0
    return f"rank {slow} takes {round_trip_s[slow]:.4g} s a step, {lag:.1%} more than rank {fast}"
