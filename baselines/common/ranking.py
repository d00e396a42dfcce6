"""The cost model's ranking of all layouts, worked out once for a recipe and a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from attune_lab.enumeration import Found, best_recipes
from attune_lab.recipe import Recipe
from simulator.hardware import ClusterSpec


def ranked_recipes(baseline: Recipe, cluster: ClusterSpec, count: int, *, memory_limit: float) -> Sequence[Found]:
    """The ``count`` recipes around ``baseline`` that the cost model expects to be fastest, fastest first.

    As `attune_lab.enumeration.best_recipes`, which takes seconds; campaigns on many worlds of the same recipe share
    the answer, which depends on nothing but the arguments.
    """
    return _ranked(json.dumps(baseline.canonical()), cluster, count, memory_limit)


@lru_cache(maxsize=32)
def _ranked(baseline: str, cluster: ClusterSpec, count: int, memory_limit: float) -> tuple[Found, ...]:
    recipe = Recipe.from_canonical(json.loads(baseline))
    return tuple(best_recipes(recipe, cluster, count, memory_limit=memory_limit).best)
