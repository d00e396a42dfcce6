"""More recomputation: the first answer to running out of memory."""

from __future__ import annotations

from attune_lab.recipe import Recipe
from attune_lab.space import SearchSpace


def stronger(space: SearchSpace, recipe: Recipe) -> list[Recipe]:
    """The legal recipes that differ from ``recipe`` by more recomputation, the weakest level first."""
    levels, own = space.parameters["recompute"].choices, space.value(recipe, "recompute")
    above = levels[levels.index(own) + 1 :] if own in levels else ()
    recipes = [space.apply(recipe, {"recompute": level}) for level in above]
    return [one for one in recipes if not space.problems(one)]
