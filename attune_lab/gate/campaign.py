"""The gate as a campaign calls it: the cluster and the user's approvals are fixed, runs come in as reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attune_lab.contracts import RunReport
from attune_lab.gate import configuration
from attune_lab.gate.run import judge_reports
from attune_lab.gate.verdict import Verdict, judge

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec


@dataclass(frozen=True)
class CampaignGate:
    """Implements `attune_lab.contracts.Gate` on one cluster.

    Attributes:
        cluster: where the runs were made.
        approvals: numerics changes the user accepts.
    """

    cluster: ClusterSpec
    approvals: Collection[str] = ()

    def configuration(self, baseline: Recipe, candidate: Recipe) -> Verdict:
        """The verdict on the effective settings alone; costs no run."""
        result = configuration.check(baseline, candidate, cluster=self.cluster, approvals=self.approvals)
        return judge(result.checks, ())

    def judge(
        self,
        baseline: Recipe,
        candidate: Recipe,
        *,
        baseline_runs: Sequence[RunReport],
        candidate_run: RunReport,
        twin_runs: Sequence[RunReport],
    ) -> Verdict:
        """The verdict on settings and paired runs; further baseline runs and twins calibrate the band."""
        first, *repeats = baseline_runs
        return judge_reports(
            (baseline, first),
            (candidate, candidate_run),
            cluster=self.cluster,
            twins=[*repeats, *twin_runs],
            approvals=self.approvals,
        )
