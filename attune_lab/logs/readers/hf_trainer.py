"""The log of the Hugging Face Trainer: Python dictionaries between states of a progress bar."""

from __future__ import annotations

import re

from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import Line
from attune_lab.logs.readers.base import Facts
from attune_lab.logs.values import number

_DICTIONARY = re.compile(r"\{'[^{}()\[\]]{1,2000}\}")
_ITEM = re.compile(r"'([^']{1,80})': (?:'([^']{1,40})'|([^,'}]{1,40}))")
_BAR = re.compile(r"^\s*\d{1,3}%\|.*\| (\d{1,15})/\d{1,15} \[(?:(\d{1,4}):)?(\d\d):(\d\d)<", re.ASCII)
_COARSE_S = 20
"""The bar shows whole seconds: over a shorter time than this, the step time would be more than 5 % off."""


class HfTrainer:
    """Reads the Trainer. A dictionary has no step: the bar before it has; without bars, entries are counted.

    **Source:** huggingface/transformers src/transformers/trainer_callback.py ``ProgressCallback``,
    ``PrinterCallback``; the summary line as in hiyouga/LlamaFactory#9258. Newer releases print values as strings.
    """

    stack = "hf-trainer"
    needles = ("{'", "%|")
    ends = ("}",)

    def __init__(self) -> None:
        self._bar: tuple[int, int] | None = None
        self._before: tuple[int, int] | None = None
        self._entries = 0

    def read(self, line: Line, facts: Facts) -> LoggedStep | bool:
        """The entry that a line with a loss prints; the run's summary goes to ``facts``."""
        if bar := _BAR.match(line.text):
            self._bar = int(bar[1]), int(bar[2] or 0) * 3600 + int(bar[3]) * 60 + int(bar[4])
            return False  # many programs draw bars
        values = _dictionary(line.text)
        if "train_runtime" in values:
            facts.finished = True
            facts.remark(
                f"the whole run took {values['train_runtime']:.6g} s, start-up, evaluations and checkpoints among them"
            )
            return True
        if "loss" not in values:
            return "eval_loss" in values
        self._entries += 1
        if self._bar is None:
            facts.remark("the log has no step numbers: steps are its entries, counted")
        return LoggedStep(
            self._bar[0] if self._bar else self._entries,
            step_time_s=self._seconds(),
            loss=values.pop("loss"),
            grad_norm=values.pop("grad_norm", None),
            other=values,
        )

    def _seconds(self) -> float | None:
        """Mean since the entry before, from what the bar says has passed."""
        now, before = self._bar, self._before
        self._before = now
        if now is None or before is None or now[0] <= before[0] or now[1] - before[1] < _COARSE_S:
            return None
        return (now[1] - before[1]) / (now[0] - before[0])


def _dictionary(text: str) -> dict[str, float]:
    """The numbers of the first flat dictionary in the text by their names; empty where there is none."""
    found = _DICTIONARY.search(text)
    items = _ITEM.findall(found[0]) if found else ()
    return {name: value for name, quoted, plain in items if (value := number(quoted or plain)) is not None}
