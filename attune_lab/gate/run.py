"""The whole gate: on the reports of a campaign's runs, or on files a user names."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attune_lab.contracts import RunReport, UserError
from attune_lab.gate import configuration, convergence
from attune_lab.gate.curve import Curve
from attune_lab.gate.curves_io import read_curve
from attune_lab.gate.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec

RECIPE_SUFFIXES = (".sh", ".yaml", ".yml")


@dataclass(frozen=True)
class CorrectnessGate:
    """The gate of a campaign.

    Attributes:
        cluster: what the runs run on.
        approvals: settings whose change of numerics the user accepts, e.g. ``fp8``.
    """

    cluster: ClusterSpec
    approvals: tuple[str, ...] = ()

    def configuration(self, baseline: Recipe, candidate: Recipe) -> Verdict:
        """The verdict on the effective settings alone; versions a recipe does not name are left to the run."""
        settings = configuration.check(
            baseline, candidate, cluster=self.cluster, approvals=self.approvals, versions_follow=True
        )
        return judge(settings.checks, ())

    def judge(
        self,
        baseline: Recipe,
        candidate: Recipe,
        *,
        baseline_runs: Sequence[RunReport],
        candidate_run: RunReport,
        twin_runs: Sequence[RunReport],
    ) -> Verdict:
        """The verdict on settings and paired runs from one start; the first of the baseline's is compared with."""
        settings = configuration.check(
            baseline, candidate, cluster=self.cluster, versions=candidate_run.versions, approvals=self.approvals
        )
        if ended := _ended_early(baseline_runs[0], candidate_run):
            return judge(settings.checks, [ended])
        repeats = [Curve.from_report(run) for run in (*baseline_runs[1:], *twin_runs) if run.status == "ok"]
        curves = Curve.from_report(baseline_runs[0]), Curve.from_report(candidate_run)
        return judge(settings.checks, convergence.check(*curves, repeats, change=settings.change))


def _ended_early(baseline: RunReport, candidate: RunReport) -> Check | None:
    """What a run that did not finish says: nothing, unless the candidate failed by itself."""
    for what, run in (("baseline", baseline), ("candidate", candidate)):
        if run.status != "ok":
            own_fault = what == "candidate" and run.status in ("diverged", "oom", "crash", "invalid")
            reason = f"The {what}'s convergence run ended as {run.status}: {run.message or 'no message'}."
            return Check(f"convergence.{what}", "reject" if own_fault else "inconclusive", reason)
    return None


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
    return judge(settings.checks, convergence.check(old_curve, new_curve, repeats, change=settings.change))


def _read(text: str) -> tuple[Recipe | None, Curve]:
    """Recipe, where there is one, and curve of one argument."""
    from attune_lab.recipe.files import load

    recipe_text, comma, curve_text = text.rpartition(",")
    if comma and not Path(text).exists():
        return load(recipe_text).recipe, read_curve(curve_text)
    path = Path(text)
    recipes = [file for file in sorted(path.iterdir()) if file.suffix in RECIPE_SUFFIXES] if path.is_dir() else []
    if len(recipes) > 1:
        raise UserError(f"{path}: holds several recipes; name one as recipe,log.")
    return (load(str(recipes[0])).recipe if recipes else None), read_curve(path)


def _smallest_cluster(*recipes: Recipe) -> ClusterSpec:
    """A cluster every layout fits on: files do not say where they ran, and differences do not depend on it."""
    from simulator.hardware import parse_cluster

    sizes = [1]
    for recipe in recipes:
        tp, pp, cp, ep = (int(str(recipe.get(key))) for key in ("tp", "pp", "cp", "ep"))
        etp = int(str(recipe.get("etp") or tp))
        sizes += [tp * pp * cp, etp * ep * pp]
    return parse_cluster(f"{math.lcm(*sizes)}xH100-SXM5-80GB")
