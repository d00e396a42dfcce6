"""Edited recipes with what the cost model expects of them; nothing is edited or priced twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from attune_lab.contracts import CostModel, Estimate
from attune_lab.recipe import Recipe, Value

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

Edits: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class Draft:
    """A recipe and its estimate."""

    recipe: Recipe
    estimate: Estimate


class Prices:
    """Applies edits and asks the cost model, new recipes in one call."""

    def __init__(self, space: SearchSpace, cost_model: CostModel) -> None:
        self._space, self._cost_model = space, cost_model
        self._edited: dict[tuple[str, tuple[tuple[str, Value], ...]], Recipe] = {}
        self._known: dict[str, Draft] = {}

    def of(self, recipe: Recipe) -> Draft:
        """``recipe`` with its estimate."""
        return self._priced([recipe])[0]

    def edited(self, recipe: Recipe, edits: Sequence[Edits]) -> list[Draft]:
        """``recipe`` under each of ``edits``, in their order; one that cannot start has an estimate with problems."""
        return self._priced([self._apply(recipe, each) for each in edits])

    def _apply(self, recipe: Recipe, edits: Edits) -> Recipe:
        key = (recipe.digest, tuple(edits.items()))
        if key not in self._edited:
            self._edited[key] = self._space.apply(recipe, edits)
        return self._edited[key]

    def _priced(self, recipes: Sequence[Recipe]) -> list[Draft]:
        new = {recipe.digest: recipe for recipe in recipes if recipe.digest not in self._known}
        if new:
            estimates = self._cost_model.estimate(list(new.values()))
            drafts = (Draft(*pair) for pair in zip(new.values(), estimates, strict=True))
            self._known.update(zip(new, drafts, strict=True))
        return [self._known[recipe.digest] for recipe in recipes]
