"""Megatron-LM's log, v2.0 to core_v0.19, and Megatron-Bridge's, which prints the same iteration line.

The one grammar of that line: the gate's reader of curves uses it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import number, pairs, whole

_ITERATION = re.compile(r"iteration\s+(\d+)/\s*\d+\s*\|", re.ASCII)
_STAMP = re.compile(r"\[([\d-]+[ T][\d:.,]+)\]\s*$", re.ASCII)
_MEMORY = re.compile(r"\[Rank (\d{1,6})\] \(after \d+ iterations\) memory \(MB\) \|(.*)", re.ASCII)
_ARGUMENT = re.compile(r"\s*(world_size|seq_length) \.+ (\d{1,12})\s*$", re.ASCII)
_BRIDGE = re.compile(r"Step Time : ([\d.]{1,20})s GPU utilization: ([\d.]{1,20})\s?MODEL_TFLOP/s/GPU", re.ASCII)
_ROUND_TRIP = re.compile(r"M[nx]Rtt/Rnk: ([\d.]{1,20})ms/(\d{1,6})", re.ASCII)
_TFLOPS = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")
_TOKENS = "tokens per gpu per second (tgs)"
_DONE = ("[exiting program at iteration", "[after training is done]")
_MIB = 2.0**20


class Iteration(NamedTuple):
    """One iteration line.

    Attributes:
        stamp: date and time as printed; empty before core_v0.6.0.
        step: number of the iteration as printed.
        rest: its columns.
    """

    stamp: str
    step: str
    rest: str

    @property
    def closed(self) -> bool:
        """Whether the line was written to its end."""
        return self.rest.endswith("|")

    def columns(self, *, closed: bool) -> Iterator[tuple[str, str]]:
        """(name, value as printed). Where lines of a log are ``closed``, what follows the last bar was cut off."""
        items = self.rest.split("|")
        return pairs(items[:-1] if closed else items)


def iteration_line(text: str) -> Iteration | None:
    """The iteration that a line prints. Of two lines run together by a kill, the second is whole.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py ``training_log``.
    """
    match = None
    for match in _ITERATION.finditer(text):  # noqa: B007 - the last one
        pass
    if match is None or text.endswith(", ", 0, match.start()):  # NeMo's line, "epoch 0, iteration 5/100 |"
        return None
    stamp = _STAMP.search(text, max(text.rfind("[", 0, match.start()), 0), match.start())
    return Iteration(stamp[1] if stamp else "", match[1], text[match.end() :].rstrip())


class Megatron:
    """Reads Megatron-LM and Megatron-Bridge; its stack is the second once a line that only Bridge prints was read.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py, megatron/core/utils.py
    ``StragglerDetector``; NVIDIA-NeMo/Megatron-Bridge@067f987 ``training_log``. Megatron-DeepSpeed adds the columns
    ``TFLOPs`` and ``tokens per gpu per second (tgs)`` at the end of the line.
    """

    needles = ("iteration", " ..", "Step Time :", "Rtt/Rnk", "training is done")
    ends = ("|",)

    def __init__(self) -> None:
        self.stack = "megatron-lm"
        self._closed = False
        self._bridge: tuple[float, float] | None = None

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step of an iteration line; memory, arguments and stragglers go to ``facts``."""
        text = line.text
        if iteration := iteration_line(text):
            return self._step(iteration, facts)
        if found := _MEMORY.search(text):
            size = dict(pairs(found[2].split("|"))).get("max reserved", "")
            facts.reserved(int(found[1]), _times(number(size), _MIB))
        elif found := _ARGUMENT.match(text):
            _argument(found[1], int(found[2]), facts)
        elif found := _BRIDGE.search(text):
            self.stack = "megatron-bridge"
            seconds, tflops = number(found[1]), number(found[2])
            self._bridge = None if seconds is None or tflops is None else (seconds, tflops)
        elif "Rtt/Rnk" in text:
            facts.round_trip_s = {int(rank): float(ms) / 1000 for ms, rank in _ROUND_TRIP.findall(text) if number(ms)}
        elif any(mark in text for mark in _DONE):
            facts.finished = True
        else:
            return False
        return True

    def _step(self, found: Iteration, facts: Facts) -> LoggedStep | bool:
        step = whole(found.step)
        if step is None:
            return True
        self._closed |= found.closed
        texts = found.columns(closed=self._closed)
        values = {name: value for name, text in texts if (value := number(text)) is not None}
        facts.batch = values.get("global batch size", facts.batch)
        seconds = _times(values.pop("elapsed time per iteration (ms)", None), 1e-3)
        claimed = [values.pop(name) for name in _TFLOPS if name in values]
        return LoggedStep(
            step,
            step_time_s=seconds,
            loss=values.pop("lm loss", None),
            grad_norm=values.pop("grad norm", None),
            tokens_per_s_per_gpu=values.pop(_TOKENS, None),
            model_tflops_per_gpu=claimed[0] if claimed else self._from_bridge(seconds, facts),
            other=values,
        )

    def _from_bridge(self, seconds: float | None, facts: Facts) -> float | None:
        """What Bridge's own line, printed by another rank, says of this step, if it is of this step."""
        printed, self._bridge = self._bridge, None
        if printed is None or seconds is None or abs(printed[0] - seconds) > 0.006:  # printed with 2 decimals
            return None
        if printed[1] == 0:
            facts.remark("Megatron-Bridge counts 0 TFLOP/s; release 25.11 does so for hybrid models")
            return None
        return printed[1]


def _argument(name: str, value: int, facts: Facts) -> None:
    if name == "world_size":
        facts.gpus = value
    else:
        facts.seq_len = value


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
