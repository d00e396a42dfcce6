"""torchtitan's log, releases 0.1 to 0.2."""

from __future__ import annotations

import math
import re

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import number, stamp_s, whole

_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s+loss:\s*(\S{1,40})(.*)", re.ASCII)
_COLUMN = re.compile(r"(\w{1,40}):\s*([-+\d.,eE]{1,40}|nan|inf)", re.ASCII)
_MESH = re.compile(r"Building \d-D device mesh with .{0,400}?, \[([\d, ]{1,80})\]", re.ASCII)
_BATCH = re.compile(r"global batch size (\d{1,12}).{0,200}?sequence length (\d{1,12})", re.ASCII)
_ALLOCATOR = re.compile(r"(\d{1,12}) CUDA (memory allocation retries|OOM errors thrown)", re.ASCII)
_GIB = 2.0**30


class Torchtitan:
    """Reads torchtitan. Step times are differences of the logger's time stamps: it prints none.

    Rates count since the line before and are per device; memory is the reserved peak.

    **Source:** pytorch/torchtitan@b5bcd76 torchtitan/components/metrics.py ``MetricsProcessor.log``; tags v0.1.0 (no
    grad_norm), v0.2.0, v0.2.2 (loss with 5 decimals).
    """

    stack = "torchtitan"
    needles = ("step:", "device mesh with", "Training starts at", "CUDA memory allocation", "CUDA OOM", "completed")
    ends = ("%", "N/A")

    def __init__(self) -> None:
        self._before: dict[int | None, tuple[int, float]] = {}

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step of a metrics line; batch, devices, memory and warnings go to ``facts``."""
        text = line.text
        if found := _STEP.search(text):
            return self._step(found, line, facts)
        if "Training starts at" in text:
            if found := _BATCH.search(text):
                facts.batch, facts.seq_len = int(found[1]), int(found[2])
        elif found := _MESH.search(text):
            sizes = [whole(size) or 1 for size in found[1].split(",")]
            facts.gpus = math.prod(sizes)
        elif found := _ALLOCATOR.search(text):
            facts.remark(f"the allocator reports {found[2]}; the reserved peak is at the limit")
        elif text.rstrip().endswith("Training completed"):
            facts.finished = True
        else:
            return False
        return True

    def _step(self, found: re.Match[str], line: Line, facts: Facts) -> LoggedStep:
        step = int(found[1])
        values = {
            name: value
            for name, text in _COLUMN.findall(found[3])
            if (value := number(text.replace(",", ""))) is not None
        }
        gib = values.get("memory")
        facts.reserved(line.rank, None if gib is None else gib * _GIB)
        return LoggedStep(
            step,
            step_time_s=self._seconds(step, line),
            loss=number(found[2]),
            grad_norm=values.pop("grad_norm", None),
            tokens_per_s_per_gpu=values.pop("tps", None),
            model_tflops_per_gpu=values.pop("tflops", None),
            other=values,
        )

    def _seconds(self, step: int, line: Line) -> float | None:
        """Mean since the line before of the same rank; None over a restart or without time stamps."""
        now = stamp_s(line.text)
        if now is None:
            return None
        before = self._before.get(line.rank)
        self._before[line.rank] = (step, now)
        if before is None or step <= before[0] or now <= before[1]:
            return None
        return (now - before[1]) / (step - before[0])
