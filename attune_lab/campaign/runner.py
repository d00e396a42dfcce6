"""Running recipes inside the budget, each exactly once.

The runner is what makes a campaign resumable: asked for a run the store already holds, it answers from there.
A campaign is therefore an ordinary program that is run again from its first line after a kill; it walks through
its stored runs in no time and goes on where it stopped, with the same ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.budget import Budget, BudgetExceeded, Reservation, bound_us, to_gpu_hours, to_us
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Cluster, EnvironmentFault, Proposal, RunReport

if TYPE_CHECKING:
    from attune_lab.campaign.result import CampaignResult
    from attune_lab.campaign.store import RunRow, Store
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec


class Observer:
    """Watches a campaign; subclass it and override what you show. Every method does nothing by default.

    After a resume, runs that were finished before are announced by `run_finished` alone.
    """

    def phase(self, name: str) -> None:
        """A phase begins: ``baseline``, ``search`` or ``finalists``."""

    def run_started(self, label: str, purpose: str, proposal: Proposal, budget: Budget) -> None:
        """A run is about to start; its cost is reserved in ``budget``."""

    def run_finished(self, row: RunRow, budget: Budget) -> None:
        """A run is over (or was refused, or answered from an earlier one); ``row`` holds its report."""

    def finished(self, result: CampaignResult) -> None:
        """The campaign is over."""


@dataclass(frozen=True)
class BoundsKept:
    """A cluster whose start-up bounds are kept in the store: budgets rest on them, and replays have no cluster."""

    cluster: Cluster
    store: Store

    @property
    def spec(self) -> ClusterSpec:
        """See `Cluster.spec`."""
        return self.cluster.spec

    def startup_bound_s(self, recipe: Recipe) -> float:
        """See `Cluster.startup_bound_s`; asked once for each recipe of a campaign."""
        known = self.store.startup_bounds_s.get(recipe.digest)
        if known is None:
            known = self.cluster.startup_bound_s(recipe)
            self.store.keep_startup_bound(recipe.digest, known)
        return known

    def run(self, recipe: Recipe, steps: int, *, label: str, step_limit_s: float | None = None) -> RunReport:
        """See `Cluster.run`."""
        return self.cluster.run(recipe, steps, label=label, step_limit_s=step_limit_s)


@dataclass
class Runner:
    """Runs recipes on ``cluster``, charges ``budget``, keeps the books in ``store``.

    ``retries`` is how often a run that the infrastructure broke is run again.
    """

    cluster: Cluster
    store: Store
    budget: Budget
    observer: Observer
    retries: int = 2
    _numbered: int = 0

    def next_label(self, purpose: str) -> str:
        """The label of the next run, e.g. ``005-search``; the same on every pass through the campaign."""
        label = f"{self._numbered:03d}-{purpose}"
        self._numbered += 1
        return label

    def run(self, label: str, purpose: str, proposal: Proposal, *, steps: int, step_limit_s: float) -> RunReport:
        """The report of a run; one that the infrastructure broke is retried while the budget lasts.

        Raises:
            BudgetExceeded: the run could overshoot the budget, and was not started.
            EnvironmentFault: the store or the cluster contradicts itself.
        """
        report = self._attempt(label, purpose, proposal, steps=steps, step_limit_s=step_limit_s)
        for retry in range(1, self.retries + 1):
            if report.status not in INFRASTRUCTURE_FAULTS:
                break
            try:
                name = f"{label}-retry{retry}"
                report = self._attempt(name, purpose, proposal, steps=steps, step_limit_s=step_limit_s)
            except BudgetExceeded:
                break
        return report

    def record(
        self, label: str, proposal: Proposal, report: RunReport, *, repeats: str | None = None, charge: bool = False
    ) -> None:
        """Keep a proposal that was answered without a run: an invalid one, or a repeat of the run ``repeats``.

        With ``charge`` the report's GPU-hours are charged, else nothing.

        Raises:
            BudgetExceeded: the charge is more than is left.
        """
        from attune_lab.campaign.store import RunRow

        stored = self._stored(label, proposal.recipe)
        if stored is None:
            due = to_us(report.gpu_hours) if charge else 0
            stored = RunRow(label, "search", proposal.recipe, describe(proposal), due, due, report, repeats)
            reservation = self.budget.reserve(due, label)
            self.store.record(stored)
        else:
            reservation = self._reserved_before(stored)
        self.budget.settle(reservation, stored.charged_us or 0)
        self.observer.run_finished(stored, self.budget)

    def _attempt(self, label: str, purpose: str, proposal: Proposal, *, steps: int, step_limit_s: float) -> RunReport:
        from attune_lab.campaign.store import RunRow

        row = self._stored(label, proposal.recipe)
        if row is None:
            bound = self.bound_us(proposal.recipe, steps, step_limit_s)
            row = RunRow(label, purpose, proposal.recipe, describe(proposal), reserved_us=bound)
            reservation = self.budget.reserve(bound, label)
            self.store.start(row)
        else:
            reservation = self._reserved_before(row)
        if row.report is None:
            self.observer.run_started(label, purpose, proposal, self.budget)
            report = checked(self.cluster.run(proposal.recipe, steps, label=label, step_limit_s=step_limit_s), label)
            charged = self.budget.settle(reservation, to_us(report.gpu_hours))
            row = self.store.finish(label, report, charged)
        else:
            assert row.charged_us is not None
            self.budget.settle(reservation, row.charged_us)
        self.observer.run_finished(row, self.budget)
        assert row.report is not None
        return row.report

    def _reserved_before(self, row: RunRow) -> Reservation:
        try:
            return self.budget.reserve(row.reserved_us, row.label)
        except BudgetExceeded as error:
            raise EnvironmentFault(
                f"run {row.label} is stored with a cost that its budget never covered ({error}): the database was "
                "edited, or written by another version; use another --out"
            ) from error

    def bound_us(self, recipe: Recipe, steps: int, step_limit_s: float) -> int:
        """The most that a run of ``steps`` steps can cost, in GPU-microseconds."""
        seconds = self.cluster.startup_bound_s(recipe) + steps * step_limit_s
        return bound_us(self.cluster.spec.n_gpus, seconds)

    def _stored(self, label: str, recipe: Recipe) -> RunRow | None:
        row = self.store.run(label)
        if row is not None and row.recipe.digest != recipe.digest:
            raise EnvironmentFault(
                f"run {label} is stored with another recipe than the one asked for now: the tuner or its version "
                "changed since; go on with the version that began this campaign, or use another --out"
            )
        return row


def describe(proposal: Proposal) -> Mapping[str, Any]:
    """The reasons of a proposal, JSON-ready: ``changed``, ``reason``, ``lesson``, ``predicted`` (None: not known)."""
    return {
        "changed": {key: [before, after] for key, (before, after) in proposal.changed.items()},
        "reason": proposal.reason,
        "lesson": proposal.lesson,
        "predicted": {key: finite(value) for key, value in proposal.predicted.items()},
    }


def checked(report: RunReport, label: str) -> RunReport:
    """The report, when it says what a campaign relies on.

    Raises:
        EnvironmentFault: another run's label, no usable cost, or an ``ok`` without throughput and step times.
    """
    rate, step_s = report.tokens_per_s_per_gpu, report.mean_step_time_s
    fault = None
    if report.label != label:
        fault = f"answered for {report.label}"
    elif not (math.isfinite(report.gpu_hours) and report.gpu_hours >= 0):
        fault = f"charged {report.gpu_hours} GPU-hours"
    elif report.status == "ok" and not (_positive(rate) and _positive(step_s)):
        fault = "called the run ok without a throughput and timed steps"
    if fault:
        raise EnvironmentFault(f"run {label}: the cluster {fault}; its adapter breaks the contract of Cluster.run")
    return report


def overrun_gpu_hours(row: RunRow) -> float:
    """How far a run went beyond the bound the cluster was given: GPU-hours that no budget covers, normally 0."""
    if row.report is None:
        return 0.0
    return to_gpu_hours(max(to_us(row.report.gpu_hours) - row.reserved_us, 0))


def finite(figure: float | None) -> float | None:
    """The figure as a plain float, None when it is not a finite number (JSON knows no other)."""
    return float(figure) if figure is not None and math.isfinite(figure) else None


def _positive(figure: float | None) -> bool:
    return figure is not None and math.isfinite(figure) and figure > 0
