"""The cost model's ranking of all layouts, worked out once for a recipe and a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from attune_lab.enumeration import Found, fastest_recipes
from attune_lab.recipe import Recipe
from attune_lab.recipe.remembered import remembered
from simulator.hardware import ClusterSpec


@remembered(last=32)
def ranked_recipes(baseline: Recipe, cluster: ClusterSpec, count: int, *, memory_limit: float) -> Sequence[Found]:
    """The ``count`` recipes around ``baseline`` that the cost model expects to be fastest, fastest first.

    As `attune_lab.enumeration.fastest_recipes`, which takes seconds; campaigns on many worlds of the same recipe share
    the answer, which depends on nothing but the arguments.
    """
    return tuple(fastest_recipes(baseline, cluster, count, memory_limit=memory_limit))
