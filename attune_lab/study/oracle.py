"""The known optimum of a world: its fastest recipe that is legal, fits, and trains the model that the baseline trains.

Every legal point of the space counts (`attune_lab.study.branching`). No tuner may ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from attune_lab.cluster.simulated import installed
from attune_lab.contracts import UserError
from attune_lab.gate.defects import active
from attune_lab.gate.facts import facts_of
from attune_lab.recipe.jobs import jobs_for
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.space import SearchSpace, search_space
from attune_lab.study.branching import best_point
from attune_lab.study.choices import Choices
from simulator.world import World

if TYPE_CHECKING:
    from attune_lab.workbench import Workbench


@dataclass(frozen=True)
class Optimum:
    """The best recipe of a space in a world.

    Attributes:
        recipe, point: the recipe, and its values by parameter.
        step_time_s, tokens_per_s_per_gpu: its truth, see `simulator.world.Truth`.
        gain: tokens per second over the baseline's, minus 1.
        proven: no legal point without defects that fits is faster.
        bound_s: no such point is faster than this; ``step_time_s`` where that is proven.
        evaluated: points priced to find it, settled or not.
    """

    recipe: Recipe
    point: Mapping[str, Value]
    step_time_s: float
    tokens_per_s_per_gpu: float
    gain: float
    proven: bool
    bound_s: float
    evaluated: int


def optimum(bench: Workbench, world: World) -> Optimum:
    """The optimum of the space around a workbench's baseline; see `Oracle.optimum`."""
    return Oracle(search_space(bench.baseline, bench.cluster), world).optimum()


class Oracle:
    """What is true of the recipes of one space in one world; no tuner may ask it."""

    def __init__(self, space: SearchSpace, world: World) -> None:
        """Ask about the recipes around ``space.baseline`` on the cluster of ``world``."""
        self._space, self._world = space, world

    def step_time_s(self, recipe: Recipe) -> float:
        """Seconds of a step of a recipe in truth, inf where it does not fit.

        Raises:
            ValueError, UserError: it cannot run at all.
        """
        truth = self._world.truth(jobs_for([recipe], self._world.cluster))
        return float(truth.step_time_s[0]) if truth.fits[0] else float("inf")

    def true_gain(self, recipe: Recipe) -> float:
        """Tokens per second of a recipe over the baseline's in truth, minus 1; -1 for a recipe that does not fit."""
        return self._baseline_s / self.step_time_s(recipe) - 1

    def is_faulty(self, recipe: Recipe) -> tuple[str, ...]:
        """Defects that are active in a recipe and not in the baseline: known ones by id, hidden ones by what sets
        them off. Empty where the recipe trains what the baseline trains."""
        inherited = self._defects(self._space.baseline)
        return tuple(name for name in self._defects(recipe) if name not in inherited)

    def _defects(self, recipe: Recipe) -> list[str]:
        cluster = self._world.cluster
        known, _ = active(facts_of(recipe, cluster, installed(self._world, recipe)))
        jobs = jobs_for([recipe], cluster)
        return [*(d.id for d in known), *(f"hidden: {d.trigger}" for d in self._world.hidden if d.active(jobs)[0])]

    @cached_property
    def _baseline_s(self) -> float:
        """Of a step of the baseline, where it does not fit as if it did."""
        jobs = jobs_for([self._space.baseline], self._world.cluster)
        return float(self._world.truth(jobs).step_time_s[0])

    def optimum(self) -> Optimum:
        """The fastest legal recipe that fits and is not faulty.

        Raises:
            UserError: no legal recipe fits.
        """
        choices = Choices(self._space, self._world)
        found = best_point(choices, self._world)
        if found.options is None:
            raise UserError(f"no legal recipe fits into {self._world.cluster.name} in this world; use a larger cluster")
        recipe = choices.recipe(found.options)
        seconds = self.step_time_s(recipe)
        tokens = int(str(recipe.get("gbs"))) * int(str(recipe.get("seq_len")))
        return Optimum(
            recipe=recipe,
            point=self._space.point(recipe),
            step_time_s=seconds,
            tokens_per_s_per_gpu=tokens / seconds / self._world.cluster.n_gpus,
            gain=self._baseline_s / seconds - 1,
            proven=found.rest_s >= seconds,
            bound_s=min(found.rest_s, seconds),
            evaluated=found.priced,
        )
