"""DeepSpeed's log: of the engine and of the pipeline engine."""

from __future__ import annotations

import re

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import number, pairs, whole

_TIMER = re.compile(r"global_step=(\d{1,15}), (RunningAvgSamplesPerSec=.*)", re.ASCII)
_SKIPPED = re.compile(r"\bstep=(\d{1,15}), skipped=(\d{1,15})", re.ASCII)
_PIPELINE = re.compile(
    r"\bsteps?: *(\d{1,15}) (?:/ *\d{1,15} )?loss: *(\S{1,40})(.{0,400}?) iter time \(s\): *(\S{1,40})"
    r" samples/sec: *(\S{1,40})",
    re.ASCII,
)
_FURTHER_LOSS = re.compile(r"(\w[\w ]{0,40}): (\S{1,40})", re.ASCII)
_PROBE = re.compile(r"Max_CA ([\d.]{1,20}) GB", re.ASCII)
_BATCH = re.compile(r"\btrain_batch_size \.+ (\d{1,12})\s*$", re.ASCII)
_GIB = 2.0**30  # DeepSpeed divides by 1024 three times and prints GB


class DeepSpeed:
    """Reads DeepSpeed. ``CurrSamplesPerSec`` is of the current step; the running average includes the warm-up.

    The engine prints no step time: it is the batch size over that rate, where the printed configuration has it.

    **Source:** deepspeedai/DeepSpeed deepspeed/utils/timer.py ``ThroughputTimer``, deepspeed/runtime/engine.py,
    deepspeed/runtime/pipe/engine.py ``train_batch``, deepspeed/runtime/utils.py ``see_memory_usage``.
    """

    stack = "deepspeed"
    needles = ("global_step=", "skipped=", "iter time (s)", "Max_CA", "train_batch_size", "OVERFLOW!")
    ends = ("GB",)

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step that a timer, a scheduler or a pipeline line prints; lines of one step are put together later."""
        text = line.text
        if found := _TIMER.search(text):
            return _timed(found, facts)
        if found := _SKIPPED.search(text):
            return LoggedStep(int(found[1]), other={"skipped so far": float(found[2])})
        if found := _PIPELINE.search(text):
            return _pipeline_step(found)
        if found := _BATCH.search(text):
            facts.batch = whole(found[1])
        elif found := _PROBE.search(text):
            size = number(found[1])
            facts.reserved(line.rank, None if size is None else size * _GIB)
        else:
            return "[deepspeed] OVERFLOW!" in text
        return True


def _timed(found: re.Match[str], facts: Facts) -> LoggedStep:
    texts = pairs(found[2].split(","), "=")
    values = {name: value for name, text in texts if (value := number(text.removesuffix("GB"))) is not None}
    rate = values.get("CurrSamplesPerSec")
    seconds = facts.batch / rate if facts.batch and rate else None
    return LoggedStep(int(found[1]), step_time_s=seconds, other=values)


def _pipeline_step(found: re.Match[str]) -> LoggedStep:
    texts = [*_FURTHER_LOSS.findall(found[3]), ("samples/sec", found[5])]
    values = {name.strip(): value for name, text in texts if (value := number(text)) is not None}
    return LoggedStep(int(found[1]), step_time_s=number(found[4]), loss=number(found[2]), other=values)
