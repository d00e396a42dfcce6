"""What a user names as a run: a folder, a log, a CSV, a recipe, or recipe and log; and what is found there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attune_lab.contracts import UserError
from attune_lab.gate.curve import NOT_RUN, Curve
from attune_lab.gate.curves_io import read_curve, read_log
from attune_lab.gate.log_ledger import Log
from attune_lab.signals.schema import FILE_NAME, Signals, read_signals

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe

RECIPE_SUFFIXES = (".sh", ".yaml", ".yml")


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
    if comma and not os.path.exists(text):
        return Run(text, read_curve(curve), load(recipe).recipe, log=read_log(curve))
    path = Path(text)
    if path.suffix in RECIPE_SUFFIXES and os.path.isfile(path):
        return Run(text, NOT_RUN, load(text).recipe)
    if not os.path.isdir(path):
        return Run(text, read_curve(path), log=read_log(path))
    recipes = [file for file in sorted(path.iterdir()) if file.suffix in RECIPE_SUFFIXES]
    if len(recipes) > 1:
        raise UserError(f"{path}: holds several recipes; name one as recipe,log.")
    found = load(str(recipes[0])).recipe if recipes else None
    signals = path / FILE_NAME
    recorded = read_signals(signals) if signals.is_file() else None
    return Run(text, read_curve(path), found, recorded, read_log(path))


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
