"""The wrapper ``+feasible-first``: a few recipes that run come first, then the inner tuner searches from them.

**Source:** TBA of DeployBench, arXiv 2604.25073 (abstract): a stage that looks for feasible points precedes a
warm-started TPE, and categorical subspaces that failed repeatedly are blocked for a while. Faithful: the order of the
stages, the temporary blacklist, and that the search starts from all that is known. Reconstructed: the numbers, and how
candidates are found. Here they are uniform draws of legal recipes, taken by how safe the cost model thinks their
memory is, and a subspace is one choice of one compound parameter (``dispatcher = allgather``). Where no draw is
expected to fit, the neighbours of the fastest recipe that ran join in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Estimate, Proposal, RunReport, Tuner, TuningTask
from attune_lab.recipe import Recipe, Value
from attune_lab.workbench import TunerFactory
from baselines.common.moves import moves
from baselines.common.pricing import Pricing
from baselines.common.proposals import propose
from baselines.common.wrapping import Wrapping

ENOUGH = 4
"""So many recipes that run, the baseline among them, end the first stage."""

LONGEST = 8
"""So many proposals end it in any case: a fifth of a budget of 40 runs."""

DRAWS = 16
"""New candidates before each proposal."""

SAFE = 0.8
"""Up to this share of the memory candidates are equally safe, and the faster is preferred."""

FAILURES, BLOCKED = 2, 4
"""After so many failures without a success a subspace is blocked for so many proposals."""

Cell = tuple[str, Value]


@dataclass(frozen=True)
class FeasibleFirst:
    """The factory of a tuner's feasible-first form: ``FeasibleFirst(factory)(task)``."""

    factory: TunerFactory

    def __call__(self, task: TuningTask) -> Tuner:
        """The tuner of ``factory`` with the first stage before it."""
        return _FeasibleFirst(task, self.factory(task))


class _FeasibleFirst(Wrapping):
    def __init__(self, task: TuningTask, inner: Tuner) -> None:
        super().__init__(task, inner)
        self._pricing = Pricing(task, self.history)
        self._rng = np.random.default_rng([task.seed, 1])
        self._pool: dict[str, Recipe] = {}
        self._turn = 0
        self.cells = Cells()

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """Tell both, and keep the account of subspaces."""
        super().tell(proposal, report)
        if report.status not in INFRASTRUCTURE_FAULTS:
            self.cells.record(self._cells_of(proposal.recipe), report.status == "ok", self._turn)

    def own_proposal(self) -> Proposal | None:
        """The safest candidate outside blocked subspaces, or None once the first stage is over."""
        if len(self.history.feasible) >= ENOUGH or self._turn >= LONGEST:
            return None
        self._turn += 1
        drawn = (self.task.space.sample(self._rng) for _ in range(DRAWS))
        self._pool |= {recipe.digest: recipe for recipe in drawn}
        ranked = self._ranked(list(self._pool.values()))
        best = self.history.best
        if best is not None and not (ranked and self._pricing.fits([ranked[0][1]])[0]):
            ranked = self._ranked([move.recipe for move in moves(self.task, best.recipe)]) or ranked
        if not ranked:
            return None
        recipe, estimate = ranked[0]
        fill = estimate.peak_memory_bytes / estimate.memory_capacity_bytes
        reason = f"feasible points first: the safest candidate, expected to fill {fill:.0%} of the memory"
        return propose(self.task, recipe, reason, estimate)

    def _ranked(self, recipes: list[Recipe]) -> list[tuple[Recipe, Estimate]]:
        """Open candidates with figures, safest first; equally safe ones by expected step time."""
        open_ = [
            recipe
            for recipe in recipes
            if not self.history.known(recipe) and not self.cells.blocked(self._cells_of(recipe), self._turn)
        ]
        priced = zip(open_, self._pricing.of(open_), strict=True)
        return sorted((pair for pair in priced if not pair[1].problems), key=lambda pair: self._danger(pair[1]))

    def _danger(self, estimate: Estimate) -> tuple[float, float]:
        fill = estimate.peak_memory_bytes / estimate.memory_capacity_bytes
        return max(self._pricing.memory_factor() * fill, SAFE), estimate.step_time_s

    def _cells_of(self, recipe: Recipe) -> set[Cell]:
        """The subspaces that ``recipe`` is in and the baseline is not."""
        changed = self.task.space.changed(self.task.baseline, recipe)
        return {(key, now) for key, (_, now) in changed.items() if self.task.space.parameters[key].compound}


class Cells:
    """Which subspaces are blocked, and until when."""

    def __init__(self) -> None:
        self._failures: Counter[Cell] = Counter()
        self._sound: set[Cell] = set()
        self._until: dict[Cell, int] = {}

    def record(self, cells: set[Cell], ran: bool, turn: int) -> None:
        """A recipe in ``cells`` ran, or failed, at proposal number ``turn``."""
        if ran:
            self._sound |= cells
            return
        for cell in cells - self._sound:
            self._failures[cell] += 1
            if self._failures[cell] >= FAILURES:
                self._failures[cell] = 0
                self._until[cell] = turn + BLOCKED

    def blocked(self, cells: set[Cell], turn: int) -> bool:
        """Whether one of ``cells`` is blocked at proposal number ``turn``."""
        return any(turn <= self._until.get(cell, 0) and cell not in self._sound for cell in cells)
