"""Nanotron's log."""

from __future__ import annotations

import re

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import pairs, suffixed

_LINE = re.compile(r"\biteration: (\d{1,15}) / \d{1,15} \|(.*)", re.ASCII)
_MS = ("time_per_iteration_ms", "elapsed_time_per_iteration_ms")


class Nanotron:
    """Reads Nanotron, whose figures have three digits and a suffix (``1.05M``).

    **Source:** huggingface/nanotron@004a89ca src/nanotron/trainer.py ``train_step_logs``.
    """

    stack = "nanotron"
    needles = ("iteration: ",)
    ends = ()

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step of an iteration line."""
        found = _LINE.search(line.text)
        if not found:
            return False
        texts = pairs(found[2].split("|"))
        values = {name: value for name, text in texts if (value := suffixed(text)) is not None}
        times = [values.pop(name) for name in _MS if name in values]
        return LoggedStep(
            int(found[1]),
            step_time_s=times[0] / 1000 if times else None,
            loss=values.pop("lm_loss", None),
            grad_norm=values.pop("grad_norm", None),
            tokens_per_s_per_gpu=values.pop("tokens_per_sec_per_gpu", None),
            model_tflops_per_gpu=values.pop("model_tflops_per_gpu", None),
            other=values,
        )
