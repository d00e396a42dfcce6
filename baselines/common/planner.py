"""A tuner that plans on the cost model, runs its plans, and plans again with what it was told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from attune_lab.contracts import Proposal, RunReport, TuningTask
from baselines.common.knowledge import Knowledge
from baselines.common.offsets import Floats
from baselines.common.options import Option, read_options
from baselines.common.pricelist import Priced, explore, ranked
from baselines.common.proposals import propose

PLANS_FIRST = 5
"""So many runs go to plans alone; then what differs from the best recipe in one parameter competes with them."""

LOOKED_AROUND = 2
"""Kinds of layout whose best recipe has its neighbours priced after each run."""


class Planner(ABC):
    """Asks `plans` before each run and runs the most hopeful of them and, later, of the best recipe's neighbours.

    Hope is the improvement expected of a recipe, times its chance to run: by the cost model, corrected by the ratios
    measured so far of recipes that are alike, with what that leaves unknown.

    Attributes:
        task: what it was built from.
        knowledge: what it was told, held against the cost model.
        stop_reason: why it ends when it does.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, task: TuningTask) -> None:
        """Price the space.

        Raises:
            UserError: an option that the tuner does not have, or a value that it cannot take.
        """
        self.chosen_options = read_options(self.name, task.options, self.options)
        self.task = task
        self.knowledge = Knowledge(task, explore(task))
        self.stop_reason = "every legal recipe it could find has been tried"
        self._next: Proposal | None = None

    @abstractmethod
    def plans(self) -> Mapping[Priced, str]:
        """What the method would run now, each with the reason."""

    def ask(self) -> Proposal | None:
        """The most hopeful recipe not yet tried, or None."""
        if self._next is None:
            self._next = self._choose()
        return self._next

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Take the report in, and price what is around the recipes that are now best."""
        self._next = None
        self.knowledge.tell(proposal.recipe, report)
        self.knowledge.prices.descend(self._crowded_s, rounds=1, kinds=LOOKED_AROUND)

    def hopeless(self, points: Sequence[Priced]) -> Floats:
        """Minus the hope of each recipe: what plans are ranked by."""
        return -self.knowledge.hope(points)

    def _crowded_s(self, points: Sequence[Priced]) -> Floats:
        """Expected seconds, more for what does not fit: whose neighbours are worth pricing."""
        return self.knowledge.seconds(points)[0] * self.knowledge.crowding(points)

    def _choose(self) -> Proposal | None:
        reasons = dict(self.plans())
        best = self.knowledge.best
        if best is not None and len(self.knowledge.history) > PLANS_FIRST:
            for one in self.knowledge.prices.neighbours(best):
                reasons.setdefault(one, "one step from the fastest recipe so far")
        chosen = self.knowledge.first_open(ranked(list(reasons), self.hopeless))
        if chosen is not None:
            return propose(self.task, chosen.recipe, reasons[chosen], chosen.estimate)
        recipe = self.knowledge.draw()
        return propose(self.task, recipe, "all plans are tried, so a random legal recipe") if recipe else None
