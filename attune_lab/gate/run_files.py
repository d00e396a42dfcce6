"""What a user names as a run: a folder, a log, a CSV, a recipe, or recipe and log; and what is found there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from attune_lab.contracts import UserError
from attune_lab.gate.curve import NOT_RUN, Curve
from attune_lab.gate.curves_io import read_curve, read_log
from attune_lab.gate.log_ledger import Log
from attune_lab.gate.rules import show
from attune_lab.signals.schema import FILE_NAME, Signals, read_signals

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe

RECIPE_SUFFIXES = (".sh", ".yaml", ".yml")

NUMBERS = (
    "gbs", "mbs", "dp", "num_microbatches", "seq_len", "train_iters", "train_samples", "lr", "min_lr",
    "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "clip_grad",
    "topk",
)  # fmt: skip
"""Settings in force that the gate calculates with."""
LARGEST = 2.0**63


@dataclass(frozen=True)
class Run:
    """One run as the gate sees it.

    Attributes:
        name: as the user wrote it.
        curve: losses, and gradient norms where they were logged; without steps where the recipe was not run.
        recipe: None where no recipe stands beside the curve.
        signals: None where the run recorded none.
        log: what a Megatron-LM log prints besides; empty where the curve is a CSV.
    """

    name: str
    curve: Curve
    recipe: Recipe | None = None
    signals: Signals | None = None
    log: Log = field(default_factory=dict)


def read_run(text: str) -> Run:
    """The run in a folder (one curve, a recipe and ``signals.json`` if there), log, CSV, recipe or ``recipe,log``.

    Raises:
        UserError: nothing there, or nothing that is a run.
    """
    from attune_lab.recipe.files import load

    recipe, comma, curve = text.rpartition(",")
    if not text.strip() or (comma and not (recipe.strip() and curve.strip())):  # else an unset variable of a shell
        raise UserError(f"{text or 'an empty name'}: names no run; give a run folder, a log, a CSV or recipe,log.")
    if comma and not os.path.exists(text):
        return Run(text, read_curve(curve), load(recipe).recipe, log=read_log(curve))
    path = Path(text)
    if _is_recipe(text):
        return Run(text, NOT_RUN, load(text).recipe)
    if not os.path.isdir(path):
        return Run(text, read_curve(path), log=read_log(path))
    recipes = [file for file in sorted(path.iterdir()) if file.suffix in RECIPE_SUFFIXES]
    if len(recipes) > 1:
        raise UserError(f"{path}: holds several recipes; name one as recipe,log.")
    found = load(str(recipes[0])).recipe if recipes else None
    signals = path / FILE_NAME
    recorded = read_recorded(signals) if os.path.lexists(signals) else None
    return Run(text, read_curve(path), found, recorded, read_log(path))


def _is_recipe(text: str) -> bool:
    """Whether this names a recipe alone: a file of one, or a shipped one."""
    from attune_lab.recipe.files import shipped_by_name

    if os.path.exists(text):
        return os.path.isfile(text) and Path(text).suffix in RECIPE_SUFFIXES
    return text in shipped_by_name()


def read_recorded(path: Path) -> Signals:
    """The signals in a file that a run wrote and that anybody may have edited since.

    Raises:
        UserError: no signals there, a setting the gate calculates with is no number, or steps not in order.
    """
    signals = read_signals(path)
    for name in NUMBERS:
        value = signals.effective.get(name)
        if value is not None and not (isinstance(value, int | float) and abs(value) < LARGEST):
            raise UserError(f"{path}: {name} is {show(value)[:40]}, where a number belongs; record the run again.")
    steps = [record.step for record in signals.steps]
    if any(after <= before for before, after in pairwise([0, *steps])):
        raise UserError(f"{path}: the steps are not 1 or above in ascending order; record the run again.")
    return signals


def read_twins(texts: Iterable[str]) -> list[Run]:
    """The runs that calibrate: each text names one, or a folder of run folders that are all taken.

    Raises:
        UserError: one of them is no run.
    """
    return [read_run(name) for text in texts for name in _folders(text) or [text]]


def _folders(text: str) -> list[str]:
    """The run folders in a folder that holds folders alone."""
    if not os.path.isdir(text):
        return []
    entries = sorted(Path(text).iterdir())
    return [str(entry) for entry in entries] if all(entry.is_dir() for entry in entries) else []
