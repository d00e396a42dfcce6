"""What a campaign's own checks refuse before a run, guessed from what the refused have in common."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from attune_lab.contracts import TuningTask
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value
from baselines.common.history import History

ENOUGH = 2
"""So many recipes refused for one reason make a third like them suspect."""

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
        """Whether ``recipe`` has all that the recipes refused for some reason share, and that none has that ran."""
        refused: dict[str, list[Traits]] = defaultdict(list)
        for trial in self._history:
            if trial.status == "invalid":
                refused[trial.reports[-1].message].append(self._traits(trial.recipe))
        shared = [frozenset.intersection(*alike) for alike in refused.values() if len(alike) >= ENOUGH]
        suspect = [traits for traits in shared if traits <= self._traits(recipe)]
        ran = [self._traits(trial.recipe) for trial in self._history.feasible] if suspect else []
        return any(not any(traits <= other for other in ran) for traits in suspect)

    def _traits(self, recipe: Recipe) -> Traits:
        """The values of all parameters, and which sizes are more than one."""
        if recipe.digest not in self._known:
            values = self._task.space.values(recipe)
            split = {(f"{key} > 1", True) for key in LAYOUT if values.get(key, 1) != 1}
            self._known[recipe.digest] = frozenset({*values.items(), *split})
        return self._known[recipe.digest]
