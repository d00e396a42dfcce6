"""A tuner around another one, which now and then proposes something itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from attune_lab.contracts import Proposal, RunReport, Tuner, TuningTask
from baselines.common.history import History


class Wrapping(ABC):
    """Asks `own_proposal` first, then the inner tuner, which is told every outcome as if it had proposed it.

    Attributes:
        task: what both were built from.
        inner: the wrapped tuner.
        history: everything told.
    """

    def __init__(self, task: TuningTask, inner: Tuner) -> None:
        self.task, self.inner = task, inner
        self.history = History()
        self._own: Proposal | None = None

    @abstractmethod
    def own_proposal(self) -> Proposal | None:
        """What to run before the inner tuner is asked again; None for nothing. Asked once for each answer."""

    @property
    def stop_reason(self) -> str:
        """The inner tuner's."""
        return str(getattr(self.inner, "stop_reason", ""))

    @property
    def usage(self) -> Mapping[str, float]:
        """The inner tuner's; empty where it asks no language model."""
        return getattr(self.inner, "usage", {})

    def ask(self) -> Proposal | None:
        """The wrapper's own proposal where it has one, else the inner tuner's."""
        if self._own is None or self.history.known(self._own.recipe):
            self._own = self.own_proposal()
        return self._own or self.inner.ask()

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Tell both."""
        self.history.record(proposal.recipe, report)
        self.inner.tell(proposal, report)
