"""What a training log says, in one form for every stack. All of it is claims of the log, not measurements of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step as a log prints it; None where it does not.

    Attributes:
        step: number of the optimizer step, from 1.
        step_time_s: seconds of a step: of this one, or the mean since the step printed before.
        loss, grad_norm: as printed; ``nan`` and infinities are kept.
        tokens_per_s_per_gpu, model_tflops_per_gpu: the log's own claims, in its own convention.
        other: further columns that are numbers, by their printed names and in their printed units.
    """

    step: int
    step_time_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    other: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a run ended, as far as its log tells.

    Attributes:
        kind: one of `attune_lab.logs.failures.KINDS`.
        evidence: the line that says so, cut to a readable length, control characters removed.
        line: its number in the log, from 1.
        memory_bytes: figures of an out-of-memory message: ``requested``, ``capacity``, ``free``, ``allocated``,
            ``private_pools``, ``unallocated`` (reserved but unallocated); those that it prints.
    """

    kind: str
    evidence: str
    line: int | None = None
    memory_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingLog:
    """A log as read.

    Attributes:
        stack: ``megatron-lm``, ``megatron-bridge``, ``torchtitan``, ``deepspeed``, ``nemo``, ``hf-trainer``,
            ``nanotron``, or ``unknown``.
        steps: in order, restarts resolved.
        failure: the first cause of its end; None for a run that ended well or is still going.
        memory_bytes: reserved peak by rank, where printed.
        remarks: what else a person should know (warnings of the stack, allocator retries, lines left out).
        finished: the stack said that training is done.
        restarts: how often training went back to a step printed before.
        gpus, tokens_per_step: where the log says them.
        round_trip_s: the fastest and the slowest rank's seconds of a step in the last straggler line, by rank.
    """

    stack: str
    steps: tuple[LoggedStep, ...]
    failure: Failure | None = None
    memory_bytes: Mapping[int, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    finished: bool = False
    restarts: int = 0
    gpus: int | None = None
    tokens_per_step: float | None = None
    round_trip_s: Mapping[int, float] = field(default_factory=dict)
