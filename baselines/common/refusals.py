"""What a campaign's own checks refuse before a run, guessed from what the refused have in common."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from attune_lab.contracts import TuningTask
from attune_lab.recipe import Recipe, Value
from baselines.common.history import History

ENOUGH = 2
"""So many recipes refused for one reason make a third like them suspect."""

RARE = 3
"""Of recipes that share what the refused do, so many times more must have been refused than have run."""

Traits: TypeAlias = frozenset[tuple[str, Value]]


class Refusals:
    """Reasons for which recipes ended as ``invalid``.

    A ranking puts like recipes next to each other, and a search ends after a row of refusals; so what looks like the
    refused is better left for later.
    """

    def __init__(self, task: TuningTask, history: History) -> None:
        self._task, self._history = task, history
        self._known: dict[str, Traits] = {}

    def expects(self, recipe: Recipe) -> bool:
        """Whether ``recipe`` has all that the recipes refused for some reason share, and few have that ran."""
        refused: dict[str, list[Traits]] = defaultdict(list)
        for trial in self._history:
            if trial.status == "invalid":
                refused[trial.reports[-1].message].append(self._traits(trial.recipe))
        ran = [self._traits(trial.recipe) for trial in self._history.feasible] if refused else []
        own = self._traits(recipe) if refused else frozenset()
        for alike in refused.values():
            shared = frozenset.intersection(*alike)
            if len(alike) >= ENOUGH and shared <= own and RARE * sum(shared <= other for other in ran) < len(alike):
                return True
        return False

    def _traits(self, recipe: Recipe) -> Traits:
        """The values of all parameters, and which of them are not the baseline's, whatever they are."""
        if recipe.digest not in self._known:
            values, own = self._task.space.values(recipe), self._task.space.values(self._task.baseline)
            moved = {(f"another {key}", True) for key in values if values[key] != own[key]}
            self._known[recipe.digest] = frozenset({*values.items(), *moved})
        return self._known[recipe.digest]
