"""The whole gate on files a user names."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attune_lab.contracts import UserError
from attune_lab.gate import configuration, convergence
from attune_lab.gate.curve import Curve
from attune_lab.gate.curves_io import read_curve
from attune_lab.gate.verdict import Verdict, judge

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec

RECIPE_SUFFIXES = (".sh", ".yaml", ".yml")


def run_gate(baseline: str, candidate: str, twins: Sequence[str] = (), approvals: Collection[str] = ()) -> Verdict:
    """The verdict on two runs given as files.

    Args:
        baseline, candidate: a run folder, a log, a CSV, or ``recipe,log``; the settings are compared when both
            have a recipe (in a run folder: its only ``.sh`` or ``.yaml``).
        twins: curves of repeats or legitimate variants of the baseline.
        approvals: settings whose change of numerics is accepted, e.g. ``fp8``.

    Raises:
        UserError: a file cannot be read as what it should be.
    """
    (old, old_curve), (new, new_curve) = _read(baseline), _read(candidate)
    repeats = [_read(twin)[1] for twin in twins]
    if old is None or new is None:
        return judge(None, convergence.check(old_curve, new_curve, repeats))
    settings = configuration.check(old, new, cluster=_smallest_cluster(old, new), approvals=approvals)
    return judge(
        settings.checks,
        convergence.check(old_curve, new_curve, repeats, change=settings.change, allowance=settings.allowance),
    )


def _read(text: str) -> tuple[Recipe | None, Curve]:
    """Recipe, where there is one, and curve of one argument."""
    from attune_lab.recipe.files import load

    recipe_text, comma, curve_text = text.rpartition(",")
    if comma and not os.path.exists(text):
        return load(recipe_text).recipe, read_curve(curve_text)
    path = Path(text)
    recipes = [file for file in sorted(path.iterdir()) if file.suffix in RECIPE_SUFFIXES] if os.path.isdir(path) else []
    if len(recipes) > 1:
        raise UserError(f"{path}: holds several recipes; name one as recipe,log.")
    return (load(str(recipes[0])).recipe if recipes else None), read_curve(path)


def _smallest_cluster(*recipes: Recipe) -> ClusterSpec:
    """A cluster every layout fits on: files do not say where they ran, and differences do not depend on it."""
    from simulator.hardware import parse_cluster

    sizes = [1]
    for recipe in recipes:
        tp, pp, cp, ep = (max(int(str(recipe.get(key))), 1) for key in ("tp", "pp", "cp", "ep"))
        etp = int(str(recipe.get("etp") or tp))
        sizes += [tp * pp * cp, etp * ep * pp]
    try:
        return parse_cluster(f"{math.lcm(*sizes)}xH100-SXM5-80GB")
    except ValueError as error:
        raise UserError(f"the layouts of the two recipes fit no cluster both can run on ({error})") from error
