"""What is known against a recipe before it runs: rules of the stack, and the gate's word on its settings."""

from __future__ import annotations

from attune_lab.contracts import TuningTask
from attune_lab.recipe import Recipe


class Objections:
    """Asks the space and, where the campaign lends it, the gate; each recipe once."""

    def __init__(self, task: TuningTask) -> None:
        self._task = task
        self._known: dict[str, str] = {}

    def against(self, recipe: Recipe) -> str:
        """Why the recipe would not run or not be shipped, one sentence; empty where nothing is known against it."""
        if recipe.digest not in self._known:
            self._known[recipe.digest] = next(iter(self._asked(recipe)), "")
        return self._known[recipe.digest]

    def allow(self, recipe: Recipe) -> bool:
        """Nothing is known against the recipe."""
        return not self.against(recipe)

    def _asked(self, recipe: Recipe) -> list[str]:
        problems = list(self._task.space.problems(recipe))
        if problems or self._task.desk is None:
            return problems
        verdict = self._task.desk.gate.configuration(self._task.baseline, recipe)
        return [f"the gate would reject it: {reason}" for reason in verdict.reasons if verdict.verdict == "reject"]
