"""An arrangement that evolves recipes on islands: a model mutates parents, a cascade judges children first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from attune_lab.contracts import INFRASTRUCTURE_FAULTS, Proposal, RunReport, TuningTask
from attune_lab.llm.scripted import Script
from attune_lab.recipe import Recipe
from baselines.agents.desk import Checked, Desk, Draft
from baselines.agents.islands import Islands
from baselines.agents.mutation import INCEPTION, WANTED, mutate, patch_of
from baselines.agents.replies import proposal_schema
from baselines.common.history import Trial
from baselines.common.options import Option
from baselines.common.pricing import Pricing

ISLAND_OPTIONS: Mapping[str, Option] = {
    "islands": Option(2, least=1, most=20),
    "population": Option(8, least=1, most=1000),
    "archive": Option(20, least=1, most=10_000),
    "migration": Option(10, least=1, most=1000),
}


class EvolvingDesk(Desk):
    """Evolution on islands.

    Options beside those of every arrangement: ``islands``, ``population`` (of each), ``archive``, ``migration`` (runs
    between two migrations).
    """

    options: ClassVar[Mapping[str, Option]] = ISLAND_OPTIONS

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        sizes = [self.setting[key] for key in ("islands", "population", "archive")]
        self.islands = Islands(*sizes)
        self._pricing = Pricing(task, self.history)
        self._parent: Recipe = task.baseline
        self._errors: dict[int, dict[str, Any]] = {}

    @property
    def incumbent(self) -> Recipe:
        """The parent in hand: what changes are made to."""
        return self._parent

    @property
    def island(self) -> int:
        """Whose turn it is."""
        return self.iteration % len(self.islands.populations)

    def scripts(self) -> Mapping[str, Script]:
        """Rules of thumb."""
        return {"mutator": mutate}

    def inception(self, role: str) -> str:
        """Who the mutator is."""
        return INCEPTION

    def deliberate(self, attempt: int) -> Sequence[Draft]:
        """A child of a parent of the island whose turn it is."""
        parent = self.islands.parent(self.island, self._rng) or Trial(self.task.baseline)
        self._parent = parent.recipe
        others = self.islands.inspirations(parent, self._rng)
        patch, draw = patch_of(self._rng.random()), float(self._rng.random())
        parts = {
            **self.situation(attempt),
            "inspirations": [self.run_facts(trial, full=True) for trial in others],
            "error": self._errors.get(self.island, {}),
        }
        facts = {**parts, "patch": patch, "draw": draw}
        body = self.say("mutator", parts, WANTED[patch], proposal_schema(self.card), facts)
        return [Draft(body.get("changes", {}), body.get("lever", ""), body.get("reasoning", ""))] if body else []

    def check(self, draft: Draft) -> Checked:
        """The cascade before a run: validity first, then the memory that the cost model expects; both are free."""
        checked = super().check(draft)
        if checked.faults:
            return checked
        if not self._pricing.fits(self._pricing.of([checked.recipe]))[0]:
            return replace(checked, faults=("the cost model does not expect it to fit in memory",))
        return checked

    def refuse(self, checked: Checked) -> None:
        """Remember what the cascade turned down; it is the island's last error until something runs."""
        super().refuse(checked)
        self._errors[self.island] = {"changes": dict(checked.edits), "why": list(checked.faults)}

    def tell(self, proposal: Proposal, report: RunReport) -> None:
        """A recipe that ran lives on the island that asked for it, the baseline on all; a failure is its last error."""
        island, at_home = self.island, proposal.recipe.digest == self.task.baseline.digest
        super().tell(proposal, report)
        trial = self.history.trial(proposal.recipe)
        if report.status in INFRASTRUCTURE_FAULTS:
            return
        if not trial.feasible:
            self._errors[island] = self.run_facts(trial, full=True)
            return
        self._errors.pop(island, None)
        for place in range(len(self.islands.populations)) if at_home else [island]:
            self.islands.add(place, trial)
        if not at_home and self.iteration % self.setting["migration"] == 0:
            self.islands.migrate()
