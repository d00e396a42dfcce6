"""Random search: the baseline every other tuner must beat.

Uniform draws of legal recipes, none twice; no run changes what is drawn next.

**Source:** Bergstra and Bengio, Random search for hyper-parameter optimization, JMLR 2012. Faithful: independent
uniform draws. Reconstructed: nothing; what is known to be illegal is not drawn, as for every tuner here.
"""

from __future__ import annotations

import numpy as np

from attune_lab.contracts import Proposal, RunReport, TuningTask, UserError

MAX_DRAWS = 1000
"""Draws in a row that may all be known already before the space counts as exhausted."""


class RandomSearch:
    """Uniform draws of legal recipes from the space, never the same twice; learns nothing from reports.

    Raises:
        UserError: the task has options; there is nothing to set.
    """

    name = "random"

    def __init__(self, task: TuningTask) -> None:
        if task.options:
            raise UserError(f"the random tuner takes no options, so leave out {', '.join(sorted(task.options))}")
        self._task = task
        self._rng = np.random.default_rng(task.seed)
        self._told = {task.baseline.digest}
        self._next: Proposal | None = None

    def ask(self) -> Proposal | None:
        """A recipe not proposed before, or None when the space seems exhausted."""
        if self._next is None:
            self._next = self._draw()
        return self._next

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Remember that the recipe was run."""
        self._told.add(proposal.recipe.digest)
        if self._next is not None and self._next.recipe.digest == proposal.recipe.digest:
            self._next = None

    def _draw(self) -> Proposal | None:
        for _ in range(MAX_DRAWS):
            recipe = self._task.space.sample(self._rng)
            if recipe.digest not in self._told:
                changed = self._task.space.changed(self._task.baseline, recipe)
                return Proposal(recipe, changed, reason="uniform draw from the legal space")
        return None
