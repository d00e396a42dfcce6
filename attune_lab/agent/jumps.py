"""The layouts worth a jump: the cost model's ranking of the whole space, corrected by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attune_lab.agent.prices import Draft, Edits, Prices
from attune_lab.contracts import CostModel
from attune_lab.enumeration import LEVERS, fastest_recipes
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe
from attune_lab.recipe.remembered import remembered

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace
    from simulator.hardware import ClusterSpec

RANKED = 1200
"""Recipes taken from the ranking of all layouts, each with every combination of `LEVERS`."""

VARIANTS = 2
"""So many combinations of levers are taken of each layout and level of recomputation: enough to leave one that fails
or does not fit for another."""

OVERFULL = 1.03
"""Predicted share of the memory that a ranked recipe may fill: some take less than predicted."""

SHORTLIST = 40
"""Ranked recipes that are priced with the settings of the best one, after each run."""

STYLE_ROUNDS = 4
WORTH = 0.001
"""Settings are moved to what the cost model prefers, at most so many, each worth so much, before layouts are ranked."""

Scores = Callable[[Sequence[Draft]], NDArray[np.float64]]
"""One number for each recipe; higher is better."""


class JumpFinder:
    """Finds the layouts to try next, each with the micro-batch, recomputation, dispatcher and overlaps it needs."""

    def __init__(
        self,
        baseline: Recipe,
        cluster: ClusterSpec,
        space: SearchSpace,
        cost_model: CostModel,
        *,
        prices: Prices,
        allows: Callable[[Recipe], bool],
    ) -> None:
        """``allows``: whether the rules of the stack and the gate have nothing against a recipe's settings."""
        self._allows = allows
        self._task = (baseline, cluster, space, cost_model)
        self._prices = prices

    def find(self, recipe: Recipe, own: Edits, scores: Scores) -> list[tuple[Edits, Draft]]:
        """What each jump moves in ``recipe`` and what it leads to, those of the highest scores.

        Args:
            recipe: keeps its other settings.
            own: its values of the parameters.
            scores: of recipes with the cost model's favourite settings in place of the recipe's own.
        """
        jumps = ranked_layouts(*self._task)
        order = np.argsort(-scores([draft for _, draft in jumps]), kind="stable").tolist()
        allowed = (jumps[place][0] for place in order if self._allows(jumps[place][1].recipe))
        moves = [{key: now for key, now in jump.items() if now != own[key]} for jump in islice(allowed, SHORTLIST)]
        moves = [move for move in moves if move]
        return list(zip(moves, self._prices.edited(recipe, moves), strict=True))


@remembered(last=8)
def ranked_layouts(
    baseline: Recipe, cluster: ClusterSpec, space: SearchSpace, cost_model: CostModel
) -> Sequence[tuple[Edits, Draft]]:
    """The layouts that the cost model expects to be fastest, fastest first, each in up to `VARIANTS` combinations of
    levers, with the settings that it prefers on the baseline's own layout.

    It depends on nothing but the arguments: campaigns of one process share the answer.
    """
    prices = Prices(space, cost_model)
    styled = _styled(baseline, space, prices)
    offered = {key: parameter.choices for key, parameter in space.parameters.items()}
    moves = [
        {key: value for key, value in values.items() if value in offered.get(key, ())}
        for values in _ranking(styled, cluster)
    ]
    drafts = prices.edited(styled, moves)
    return tuple((move, draft) for move, draft in zip(moves, drafts, strict=True) if not draft.estimate.problems)


@remembered(last=8)
def _ranking(styled: Recipe, cluster: ClusterSpec) -> Sequence[Edits]:
    """The values of the best recipes around ``styled``, fastest first. It takes seconds."""
    found = fastest_recipes(styled, cluster, RANKED, memory_limit=OVERFULL, variants=VARIANTS)
    return tuple(one.values for one in found)


def _styled(baseline: Recipe, space: SearchSpace, prices: Prices) -> Recipe:
    """``baseline`` with the settings, layout and levers apart, that the cost model prefers."""
    best = prices.of(baseline)
    keys = [key for key in space.parameters if key not in LAYOUT and key not in LEVERS]
    for _ in range(STYLE_ROUNDS):
        moves = [{key: value} for key in keys for value in space.neighbours(best.recipe, key)]
        fitting = [draft for draft in prices.edited(best.recipe, moves) if draft.estimate.fits]
        faster = min(fitting, key=lambda draft: draft.estimate.step_time_s, default=best)
        if not faster.estimate.step_time_s < best.estimate.step_time_s * (1.0 - WORTH):
            break
        best = faster
    return best.recipe
