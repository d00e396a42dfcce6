"""NeMo's log: the line of NeMo 2 and the progress bar before it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import number, pairs, whole

_LINE = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,15})/(\d{1,15}) \|(.*)", re.ASCII)
_BAR = re.compile(r"\b\d{1,15}/(?:\d{1,15}|\?) \[[^,\[\]]{0,40},[^,\[\]]{0,40}(?:it/s|s/it), (.*)", re.ASCII)
_MEMORY = ("max_memory_reserved", "peak_memory_usage")


class Nemo:
    """Reads NeMo. Steps are counted from 0 there. The bar's own rate is an average and is not used.

    **Source:** NVIDIA-NeMo/Speech nemo/lightning/pytorch/callbacks/progress_printer.py and progress_bar.py; lines in
    NVIDIA-NeMo/Speech#10675, #10128 and NVIDIA/NeMo-Framework-Launcher#55.
    """

    stack = "nemo"
    needles = ("Training epoch", "global_step=", "`Trainer.fit` stopped")
    ends = ("]",)

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The step that a line or a state of the progress bar prints; memory goes to ``facts``."""
        text = line.text
        if found := _LINE.search(text):
            values = _numbers(pairs(found[4].split("|")))
            epoch, iteration, last = (whole(number) or 0 for number in found.group(1, 2, 3))
            return _step(values, epoch * (last + 1) + iteration, line, facts)
        if "reduced_train_loss=" in text and (found := _BAR.search(text)):
            values = _numbers(pairs(found[1].rstrip().rstrip("]").split(","), "="))
            return "global_step" in values and _step(values, 0, line, facts)
        if "`Trainer.fit` stopped" in text:
            facts.finished = True
            return True
        return False


def _numbers(texts: Iterable[tuple[str, str]]) -> dict[str, float]:
    return {name: value for name, text in texts if (value := number(text)) is not None}


def _step(values: dict[str, float], counted: int, line: Line, facts: Facts) -> LoggedStep | bool:
    printed = values.pop("global_step", float(counted))
    if not 0 <= printed < 2**53:
        return True
    facts.batch = values.get("global_batch_size", facts.batch)
    for name in _MEMORY:
        facts.reserved(line.rank, values.get(name))
    return LoggedStep(
        int(printed) + 1,
        step_time_s=values.pop("train_step_timing in s", None),
        loss=values.pop("reduced_train_loss", None),
        grad_norm=values.pop("grad_norm", None),
        tokens_per_s_per_gpu=values.pop("tokens_per_sec_per_gpu", None),
        model_tflops_per_gpu=values.pop("TFLOPS_per_GPU", None),
        other=values,
    )
