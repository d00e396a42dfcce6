"""How far predictions of the same kind have been off: what the accuracy report says of similar published runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_REPORT = "accuracy.json"


@dataclass(frozen=True)
class TypicalError:
    """Error of held-out predictions.

    Attributes:
        of: ``step time`` or ``peak memory``.
        among: the published runs compared with: all, those on an accelerator, those of a model.
        median: of the absolute relative errors.
        bias: median of predicted over measured, less 1; None where the report does not say.
        runs: how many.
    """

    of: str
    among: str
    median: float
    bias: float | None
    runs: int


@cache
def report() -> Mapping[str, Any]:
    """The accuracy report that the package holds, as `attune validate` wrote it; empty without one."""
    path = files("simulator").joinpath("data", _REPORT)
    content: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return content


def typical_errors(accelerator: str, model: str, content: Mapping[str, Any] | None = None) -> tuple[TypicalError, ...]:
    """The errors of predictions for this accelerator, this model and everything, as far as there are any.

    Args:
        accelerator, model: their names.
        content: an accuracy report, that of the package by default.
    """
    content = report() if content is None else content
    found = []
    for table, group in (("model", model), ("accelerator", accelerator)):
        for row in content.get("tables", {}).get(table, ()):
            if row["group"] == group:
                found += [_typical(what, group, row, key) for what, key in _KINDS if f"{key}_median" in row]
    for what, key in _KINDS:
        figure = content.get("figures", {}).get(f"{key}_median")
        if figure is not None:
            found.append(TypicalError(what, "all", figure["value"], None, figure["count"]))
    return tuple(found)


_KINDS = (("step time", "time"), ("peak memory", "memory"))


def _typical(what: str, group: str, row: Mapping[str, Any], key: str) -> TypicalError:
    return TypicalError(what, group, row[f"{key}_median"], row[f"{key}_bias"], row[f"{key}_rows"])
