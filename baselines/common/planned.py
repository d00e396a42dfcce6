"""Ask and tell around a plan: the search written as one function that yields proposals and is sent their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TypeAlias

from attune_lab.contracts import Proposal, RunReport, TuningTask
from baselines.common.history import History, Trial

Plan: TypeAlias = Generator[Proposal, Trial, str]
"""Yields a proposal, is sent its trial, and returns the sentence why it ends."""


class PlannedTuner(ABC):
    """A tuner whose search is the generator `plan`.

    A proposal whose outcome is known already is answered from the history at no cost, so a plan may yield what it
    likes, provided that it ends. The plan goes on when it is asked, not when it is told: what was told in between
    (the baseline's own runs, a wrapper's proposals) is in the history by then.

    Attributes:
        task: what it was built from.
        history: everything told.
        stop_reason: why the plan ended; empty before.
    """

    def __init__(self, task: TuningTask) -> None:
        self.task = task
        self.history = History()
        self.stop_reason = ""
        self._plan = self.plan()
        self._pending: Proposal | None = None

    @abstractmethod
    def plan(self) -> Plan:
        """The search; it starts with the first `ask`."""

    def ask(self) -> Proposal | None:
        """The next proposal without a known outcome, or None when the plan has ended."""
        while not self.stop_reason and (self._pending is None or self.history.known(self._pending.recipe)):
            try:
                if self._pending is None:
                    self._pending = next(self._plan)
                else:
                    self._pending = self._plan.send(self.history.trial(self._pending.recipe))
            except StopIteration as end:
                self._pending, self.stop_reason = None, end.value
        return self._pending

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """File the report."""
        self.history.record(proposal.recipe, report)
