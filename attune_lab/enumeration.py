"""The best recipes of a whole search space: every legal layout, with the levers whose worth depends on the layout."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attune_lab.contracts import Estimate
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.parameters import LAYOUT
from attune_lab.recipe.effective import effective
from attune_lab.recipe.jobs import job_columns
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.shape import shape_of
from attune_lab.space import SearchSpace
from simulator.enumeration import Layouts, Space, cheapest_layouts, enumerate_layouts
from simulator.hardware import ClusterSpec
from simulator.job import Ints
from simulator.posterior import POSTERIOR, Posterior

RECOMPUTE = "recompute"
LEVERS = (RECOMPUTE, "dispatcher", "ep_overlap", "tp_comm_overlap")
"""Parameters tried with every layout; all others stay as the recipe has them."""

_SPARE = 10
"""Layouts asked of the simulator for each one wanted: the recipe's stack may refuse some that the simulator prices."""


@dataclass(frozen=True)
class Found:
    """One recipe of the space: the values of its layout and levers, and what the cost model expects of it."""

    values: Mapping[str, Value]
    recipe: Recipe
    estimate: Estimate


@dataclass(frozen=True)
class BestRecipes:
    """What `best_recipes` returns.

    Attributes:
        best: the fastest recipes, fastest first.
        front: recipes that no other betters in both step time and memory, fastest first.
        legal, fitting: layouts priced, and those of them that fit in memory.
    """

    best: list[Found]
    front: list[Found]
    legal: int
    fitting: int


def best_recipes(
    baseline: Recipe, cluster: ClusterSpec, count: int, posterior: Posterior = POSTERIOR, *, memory_limit: float = 1.0
) -> BestRecipes:
    """The ``count`` fastest recipes around a baseline that fit in memory, by the cost model, and the Pareto front.

    The simulator prices the whole space; what it finds is written as recipes, checked against every rule of the stack
    and priced again as written, with the layers split as the recipe splits them. ``posterior`` has the constants.
    To fit is to fill no more than ``memory_limit`` of the accelerator's memory.

    Raises:
        UserError: the baseline lacks a needed flag or uses a format that is not simulated.
    """
    written = _Written(baseline, cluster, posterior, memory_limit)
    result = enumerate_layouts(written.space, posterior.physics(), count=_SPARE * count, memory_limit=memory_limit)
    best, front = written.recipes(result.best), written.recipes(result.front)
    return BestRecipes(best[:count], front, result.legal, result.fitting)


def fastest_recipes(
    baseline: Recipe,
    cluster: ClusterSpec,
    count: int,
    posterior: Posterior = POSTERIOR,
    *,
    memory_limit: float = 1.0,
    variants: int | None = None,
) -> list[Found]:
    """``best`` of `best_recipes` alone, several times sooner: what cannot be among the fastest is not priced.

    Args:
        baseline, cluster, count, posterior, memory_limit: see `best_recipes`.
        variants: of one layout and level of recomputation at most so many combinations of the other levers are looked
            at; None for all.

    Raises:
        UserError: see `best_recipes`.
    """
    written = _Written(baseline, cluster, posterior, memory_limit)
    found = cheapest_layouts(
        written.space,
        written.no_dearer,
        posterior.physics(),
        count=_SPARE * count,
        memory_limit=memory_limit,
    )
    return written.recipes(found, variants)[:count]


class _Written:
    """Layouts of a recipe's search space, written as recipes.

    Attributes:
        space: the space as the simulator's, `LEVERS` with every layout.
        no_dearer: for each combination of levers the same without recomputation, which only ever costs time.
    """

    def __init__(self, baseline: Recipe, cluster: ClusterSpec, posterior: Posterior, memory_limit: float) -> None:
        self._search = SearchSpace(baseline, cluster)
        keys = [key for key in LEVERS if key in self._search.parameters]
        choices = [self._search.parameters[key].choices for key in keys]
        self._levers = [dict(zip(keys, values, strict=True)) for values in itertools.product(*choices)]
        assert keys[0] == RECOMPUTE
        self._of_a_level = len(self._levers) // len(choices[0])
        self.no_dearer = np.arange(len(self._levers)) % self._of_a_level
        self.space = _space(self._search, cluster, self._levers)
        self._room = memory_limit * cluster.accelerator.memory_bytes
        self._cost_model = SimulatedCostModel(cluster, posterior)

    def recipes(self, layouts: Layouts, variants: int | None = None) -> list[Found]:
        """Those of ``layouts`` that hold as recipes, fastest first."""
        kept = layouts.index[_at_most(variants, layouts.index // self._of_a_level)]
        sizes, chosen = np.divmod(kept, len(self._levers))
        keys = [key for key in LAYOUT if key in self._search.parameters]
        values = [
            {key: int(self.space.sizes[key][size]) for key in keys} | self._levers[lever]
            for size, lever in zip(sizes, chosen, strict=True)
        ]
        recipes = [self._search.apply(self._search.baseline, edits) for edits in values]
        legal = [
            Found(*one)
            for one in zip(values, recipes, self._cost_model.estimate(recipes), strict=True)
            if one[2].peak_memory_bytes <= self._room and not self._search.problems(one[1])
        ]
        return sorted(legal, key=lambda one: one.estimate.step_time_s)


def _at_most(each: int | None, kinds: Ints) -> NDArray[np.bool_]:
    """Which places are among the first ``each`` of their kind."""
    order = np.argsort(kinds, kind="stable")
    _, first, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    number = np.empty(kinds.size, dtype=np.int64)
    number[order] = np.arange(kinds.size) - np.repeat(first, counts)
    return np.asarray(number < (kinds.size if each is None else each))


def _space(search: SearchSpace, cluster: ClusterSpec, levers: list[dict[str, Value]]) -> Space:
    """The recipe's search space as the simulator's: all legal sizes, deepest pipelines last, and these levers."""
    rows = sorted(search.enumerate_layouts(), key=lambda row: row["pp"])
    columns = [_lever_columns(search, cluster, edits) for edits in levers]
    batch = {name: columns[0].pop(name) for name in ("gbs", "seq_len")}
    sizes = {name: np.array([row[name] for row in rows]) for name in LAYOUT}
    sizes |= {name: np.full(len(rows), value) for name, value in batch.items()}
    names = columns[0].keys() - {"stage_layers", *LAYOUT}
    tables = {name: np.array([row[name] for row in columns]) for name in sorted(names)}
    return Space(shape_of(search.baseline), cluster, sizes, tables)


def _lever_columns(search: SearchSpace, cluster: ClusterSpec, edits: Mapping[str, Value]) -> dict[str, Any]:
    """Columns of the baseline with these levers, as they are on layouts where tensor parallelism has an effect."""
    values = effective(search.apply(search.baseline, edits), cluster)
    split = values["tp"] > 1
    return job_columns({**values, "tp": 2, "sequence_parallel": values["sequence_parallel"] or not split})
