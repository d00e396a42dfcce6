"""The planners' view of a space: recipes with what the cost model expects of them, and how the good ones are found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attune_lab.contracts import CostModel, Estimate, TuningTask
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Recipe, Value
from attune_lab.recipe.remembered import remembered

if TYPE_CHECKING:
    from attune_lab.space import SearchSpace

KIND = ("tp", "pp", "ep")
"""Sizes that decide what kind of layout it is."""

OVERLAPS = ("ep_overlap", "tp_comm_overlap")
"""What hides the communication of a layout: a layout may only be worth its communication where it is hidden."""

ROOM = 0.95
"""The share of the memory that a predicted peak may fill; predictions are some percent off."""

OVERFULL = 4.0
"""Each percent of predicted memory over the room counts as so many percent of step time while searching: what is
fast and a little too large leads to what is fast and fits."""

Edits: TypeAlias = Mapping[str, Value]
Scores: TypeAlias = "Callable[[Sequence[Priced]], NDArray[np.float64]]"
"""One number for each recipe; lower is better."""

KINDS, ROUNDS = 8, 6
"""Kinds of layout that are improved before anything runs, and how many times."""

WORTH_A_LOOK = 1.35
"""Recipes expected to take up to this many times the shortest step are looked at; models are not off by more."""


@dataclass(frozen=True, eq=False)
class Priced:
    """One recipe that can start, its values of the space's parameters, and its estimate; one object a recipe."""

    recipe: Recipe
    values: Mapping[str, Value]
    estimate: Estimate

    @cached_property
    def expected_s(self) -> float:
        """Predicted seconds a step, more where the predicted peak does not fit (see `OVERFULL`)."""
        return self.estimate.step_time_s * (1.0 + OVERFULL * max(self.fill - ROOM, 0.0))

    @cached_property
    def layout(self) -> tuple[Value, ...]:
        """Its parallel sizes and its micro-batch, in the order of `attune_lab.parameters.LAYOUT`."""
        return tuple(self.values.get(key, 1) for key in LAYOUT)

    @cached_property
    def kind(self) -> tuple[Value, ...]:
        """Its sizes in the order of `KIND`."""
        return tuple(self.values.get(key, 1) for key in KIND)

    @property
    def fill(self) -> float:
        """Predicted peak as a fraction of the accelerator's memory."""
        return self.estimate.peak_memory_bytes / self.estimate.memory_capacity_bytes

    def size(self, key: str) -> int:
        """One of its parallel sizes; 1 where the space has no such parameter."""
        return int(str(self.values.get(key) or 1))


class PriceList:
    """All recipes of a space that were priced by a cost model, in the order first asked. Nothing is priced twice."""

    def __init__(self, space: SearchSpace, cost_model: CostModel) -> None:
        self._space, self._cost_model = space, cost_model
        self._known: dict[str, Priced | None] = {}
        self._expanded: set[str] = set()
        self._legal: dict[str, bool] = {}

    def copy(self) -> PriceList:
        """The same prices, for another campaign to go on from."""
        other = PriceList(self._space, self._cost_model)
        other._known, other._expanded, other._legal = dict(self._known), set(self._expanded), dict(self._legal)
        return other

    def __iter__(self) -> Iterator[Priced]:
        return (one for one in self._known.values() if one is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def price(self, recipes: Iterable[Recipe]) -> list[Priced]:
        """Those of ``recipes`` that can start, each once, in the order given; new ones in one call of the model."""
        asked = {recipe.digest: recipe for recipe in recipes}
        new = [recipe for digest, recipe in asked.items() if digest not in self._known]
        estimates = self._cost_model.estimate(new) if new else []
        for recipe, estimate in zip(new, estimates, strict=True):
            priced = None if estimate.problems else Priced(recipe, self._space.values(recipe), estimate)
            self._known[recipe.digest] = priced
        return [one for digest in asked if (one := self._known[digest]) is not None]

    def edited(self, base: Recipe, edits: Iterable[Edits]) -> list[Priced]:
        """``base`` with each of ``edits``, as `price` gives it."""
        return self.price(self._space.apply(base, one) for one in edits)

    def neighbours(self, one: Priced) -> list[Priced]:
        """Recipes that differ from ``one`` in one parameter."""
        space = self._space
        self._expanded.add(one.recipe.digest)
        edits = [{key: value} for key in space.parameters for value in space.neighbours(one.recipe, key)]
        return self.edited(one.recipe, edits)

    def is_legal(self, one: Priced) -> bool:
        """Whether the space has no objection to it; asked late, for it costs as much as a price."""
        digest = one.recipe.digest
        if digest not in self._legal:
            self._legal[digest] = not self._space.problems(one.recipe)
        return self._legal[digest]

    @property
    def good(self) -> list[Priced]:
        """Those expected to be within `WORTH_A_LOOK` of the fastest, in the order first asked."""
        limit = WORTH_A_LOOK * min((one.expected_s for one in self), default=math.inf)
        return [one for one in self if one.expected_s <= limit]

    def descend(self, scores: Scores, *, rounds: int, kinds: int = 1) -> None:
        """``rounds`` times, price the neighbours of the best recipe of each of the ``kinds`` best kinds of layout."""
        for _ in range(rounds):
            best: dict[tuple[Value, ...], Priced] = {}
            for one in ranked(self.good, scores):
                if one.kind in best or len(best) < kinds:
                    best.setdefault(one.kind, one)
            open_ends = [one for one in best.values() if one.recipe.digest not in self._expanded]
            if not open_ends:
                return
            for one in open_ends:
                self.neighbours(one)


def ranked(points: Sequence[Priced], scores: Scores) -> list[Priced]:
    """``points`` by their scores, lowest first; the earlier of equals first."""
    return [points[place] for place in np.argsort(scores(points), kind="stable")] if points else []


def expected_s(points: Sequence[Priced]) -> NDArray[np.float64]:
    """`Priced.expected_s` of each point: the score before anything is measured."""
    return np.array([one.expected_s for one in points])


def explore(task: TuningTask) -> PriceList:
    """The good recipes of the whole space by the cost model alone, and some thousand others on the way to them.

    First the settings of the baseline's own layout are improved one at a time; then one layout of every kind is
    priced with these settings, with the least and the most recomputation, communication hidden and not; and then
    the best kinds are improved one parameter at a time, layout and settings alike.

    It takes seconds and depends on the recipe, the space and the cost model alone: campaigns of one process that share
    these share the answer.
    """
    return _explored(task.baseline, task.space, task.cost_model).copy()


@remembered(last=4)
def _explored(baseline: Recipe, space: SearchSpace, cost_model: CostModel) -> PriceList:
    prices = PriceList(space, cost_model)
    prices.price([baseline])
    prices.descend(expected_s, rounds=3)
    style = min(prices, key=lambda one: one.expected_s, default=None)
    if style is None:
        return prices
    levels = space.parameters["recompute"].choices
    overlaps = [key for key in OVERLAPS if key in space.parameters]
    styles = [
        {"recompute": level, **dict.fromkeys(overlaps, hidden)}
        for level, hidden in itertools.product((levels[0], levels[-1]), (False, True) if overlaps else (False,))
    ]
    layouts = one_of_each_kind(baseline, space)
    prices.edited(style.recipe, ({**layout, **style} for layout in layouts for style in styles))
    prices.descend(expected_s, rounds=ROUNDS, kinds=KINDS)
    return prices


def one_of_each_kind(baseline: Recipe, space: SearchSpace) -> list[dict[str, Value]]:
    """The legal layout nearest to the baseline's for each combination of the `KIND` sizes, with virtual stages
    and without.
    """
    own = space.values(baseline)
    nearest: dict[tuple[int, ...], tuple[float, dict[str, Value]]] = {}
    for row in space.enumerate_layouts():
        sizes = {key: size for key, size in row.items() if key in own}
        apart = sum(abs(math.log(size / int(str(own[key] or 1)))) for key, size in sizes.items())
        place = (*(row[key] for key in KIND), int(row["vpp"] > 1))
        if place not in nearest or apart < nearest[place][0]:
            nearest[place] = (apart, dict(sizes))
    return [sizes for _, sizes in nearest.values()]
