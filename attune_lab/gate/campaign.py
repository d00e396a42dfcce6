"""The gate as a campaign calls it: the cluster and the user's approvals are fixed, runs come in as reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attune_lab.contracts import RunReport
from attune_lab.gate import configuration, convergence
from attune_lab.gate.curve import Curve
from attune_lab.gate.start import start_may_differ
from attune_lab.gate.verdict import Check, Verdict, judge

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec


@dataclass(frozen=True)
class CampaignGate:
    """Implements `attune_lab.contracts.Gate` on one cluster.

    Attributes:
        cluster: what the runs run on.
        approvals: settings whose change of numerics the user accepts, e.g. ``fp8``.
    """

    cluster: ClusterSpec
    approvals: Collection[str] = ()

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
        """The verdict on settings and paired runs from one start; the first of the baseline's is compared with.

        Of a candidate that was asked for fewer steps the curves alone are looked at: what rejects it already no
        further step could change; anything else is inconclusive.
        """
        settings = configuration.check(
            baseline, candidate, cluster=self.cluster, versions=candidate_run.versions, approvals=self.approvals
        )
        if ended := _ended_early(baseline_runs[0], candidate_run) or configuration.other_versions(
            "convergence.versions", baseline_runs[0].versions, candidate_run.versions
        ):
            return judge(settings.checks, [ended])
        repeats = [Curve.from_report(run) for run in (*baseline_runs[1:], *twin_runs) if run.status == "ok"]
        curves = Curve.from_report(baseline_runs[0]), Curve.from_report(candidate_run)
        if candidate_run.steps < baseline_runs[0].steps:
            seen = convergence.decide(*curves, repeats, change=settings.change, allowance=settings.allowance)
            return judge((), seen.checks or None)
        checks = convergence.check(*curves, repeats, change=settings.change, allowance=settings.allowance)
        return judge(settings.checks, [*checks, *_assumed(baseline, candidate)])


@dataclass(frozen=True)
class OpenGate(CampaignGate):
    """No gate: whatever ran and was fast is shipped. For studies of what a gate is worth, never for a user's recipe."""

    def configuration(self, baseline: Recipe, candidate: Recipe) -> Verdict:
        """Passes unread."""
        return judge((), ())

    def judge(
        self,
        baseline: Recipe,
        candidate: Recipe,
        *,
        baseline_runs: Sequence[RunReport],
        candidate_run: RunReport,
        twin_runs: Sequence[RunReport],
    ) -> Verdict:
        """Passes unread."""
        return judge((), ())


def _assumed(baseline: Recipe, candidate: Recipe) -> list[Check]:
    """What is taken for granted of a campaign's runs where settings alone would not tell."""
    if start_may_differ(baseline.settings, candidate.settings) is None:
        return []
    reason = (
        "Taken as given: the cluster starts every run from the same weights, as the simulated one does; on your own "
        "let both layouts load one checkpoint."
    )
    return [Check("convergence.start", "pass", reason)]


def _ended_early(baseline: RunReport, candidate: RunReport) -> Check | None:
    """What a run that did not finish says: nothing, unless the candidate failed by itself."""
    for what, run in (("baseline", baseline), ("candidate", candidate)):
        if run.status != "ok":
            own_fault = what == "candidate" and run.status in ("diverged", "oom", "crash", "invalid")
            reason = f"The {what}'s convergence run ended as {run.status}: {run.message or 'no message'}."
            return Check(f"convergence.{what}", "reject" if own_fault else "inconclusive", reason)
    return None
