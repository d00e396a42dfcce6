"""One-parameter moves in the search space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attune_lab.contracts import TuningTask
from attune_lab.recipe import Recipe, Value
from attune_lab.recipe.effective import effective


@dataclass(frozen=True)
class Move:
    """One parameter of a recipe set to another value.

    Attributes:
        recipe: the recipe after the move.
    """

    key: str
    value: Value
    recipe: Recipe


def applicable(task: TuningTask, recipe: Recipe) -> list[str]:
    """Parameters that have an effect on ``recipe``, in the space's order."""
    settings = effective(recipe, task.cluster)
    return [key for key, parameter in task.space.parameters.items() if parameter.applies_if.evaluate(settings)]


def moves(task: TuningTask, recipe: Recipe, keys: Iterable[str] | None = None) -> list[Move]:
    """Every legal step from ``recipe`` to a neighbouring value of one of ``keys`` (None: of all that have an effect).

    In the order of the keys, then of the space's neighbours.
    """
    found = []
    for key in applicable(task, recipe) if keys is None else keys:
        for value in task.space.neighbours(recipe, key):
            moved = task.space.apply(recipe, {key: value})
            if not task.space.problems(moved):
                found.append(Move(key, value, moved))
    return found
