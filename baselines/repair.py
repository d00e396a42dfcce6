"""The wrapper ``+repair``: a recipe that ran out of memory runs again at once with more recomputation.

The rule is one an engineer follows without thinking, and one that helps every tuner where few recipes fit, so it must
not be given to one tuner alone. The inner tuner is told both outcomes; the second run is charged like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from attune_lab.contracts import Proposal, RunReport, Tuner, TuningTask
from attune_lab.recipe import Recipe
from attune_lab.workbench import TunerFactory
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.recomputation import stronger
from baselines.common.wrapping import Wrapping


@dataclass(frozen=True)
class Repair:
    """The factory of a tuner's repairing form: ``Repair(factory)(task)``."""

    factory: TunerFactory

    def __call__(self, task: TuningTask) -> Tuner:
        """The tuner of ``factory`` with the rule around it."""
        return _Repairing(task, self.factory(task))


class _Repairing(Wrapping):
    def __init__(self, task: TuningTask, inner: Tuner) -> None:
        super().__init__(task, inner)
        self._pricing = Pricing(task, self.history)
        self._failed: Recipe | None = None

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Tell both, and keep what ran out of memory."""
        super().tell(proposal, report)
        self._failed = proposal.recipe if report.status == "oom" else None

    def own_proposal(self) -> Proposal | None:
        """The failed recipe with the next stronger recomputation that should fit, unless one is known to run."""
        failed, self._failed = self._failed, None
        if failed is None:
            return None
        before = self.task.space.value(failed, "recompute")
        peak = self._pricing.of([failed])[0].peak_memory_bytes
        for recipe in stronger(self.task.space, failed):
            trial, estimate = self.history.get(recipe), self._pricing.of([recipe])[0]
            if trial is not None and trial.feasible:
                return None
            saves = estimate.peak_memory_bytes < peak and self._pricing.fits([estimate])[0]
            if saves and not self.history.known(recipe):
                level = self.task.space.value(recipe, "recompute")
                reason = f"out of memory with recompute {before}: the same with {level}"
                return propose(self.task, recipe, reason, estimate)
        return None
