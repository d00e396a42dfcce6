"""The search space: typed, conditional, constrained, and the same for every tuner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.parameters import LAYOUT, Parameter, approvable, declared, read, spelled, stated, write
from attune_lab.points import Points
from attune_lab.recipe.constraints import can_start, refusals
from attune_lab.recipe.coupling import KEPT_WHILE, SPLIT_KEYS, settle
from attune_lab.recipe.effective import effective
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.registry import registry
from attune_lab.recipe.remembered import remembered
from attune_lab.recipe.shape import defaults
from simulator.hardware import ClusterSpec

_FOLLOWING = frozenset(
    {*SPLIT_KEYS, *KEPT_WHILE, "etp", "sequence_parallel", "env.NCCL_GRAPH_REGISTER", "env.CUDA_DEVICE_MAX_CONNECTIONS"}
)
"""Settings that move with a parameter without being one."""


class SearchSpace:
    """What a tuner may change about one baseline on one cluster.

    Attributes:
        baseline: the recipe the space is built around; its own values are always among the choices.
        parameters: key -> `Parameter`, in the order of declaration.
    """

    def __init__(self, baseline: Recipe, cluster: ClusterSpec, approvals: Collection[str] = ()) -> None:
        """Build the space.

        Args:
            baseline: the recipe to improve.
            cluster: where it runs.
            approvals: numerics-changing parameters the user permits (`attune_lab.parameters.approvable`).

        Raises:
            UserError: an approval that does not exist, or a baseline without a needed flag.
        """
        unknown = sorted(set(approvals) - set(approvable()))
        if unknown:
            raise UserError(f"nothing called {', '.join(unknown)} can be approved; known: {', '.join(approvable())}")
        self.baseline = baseline
        self._cluster = cluster
        self._base = effective(baseline, cluster)
        self.parameters: Mapping[str, Parameter] = {
            key: self._with_own_choice(parameter) for key, parameter in declared(self._base, approvals).items()
        }
        governed = {name for parameter in self.parameters.values() for name in parameter.settings}
        self._governed = governed | _FOLLOWING
        self._everything = _everything(baseline)

    def _with_own_choice(self, parameter: Parameter) -> Parameter:
        """``parameter`` with the baseline's value among its choices, called ``recipe`` when it is a combination."""
        own = read(parameter, self.baseline, self._base)
        if own in parameter.choices:
            return parameter
        if not parameter.compound:
            return replace(parameter, choices=(*parameter.choices, own))
        written = {name: stated(self.baseline, name) for name in parameter.settings}
        place = len(parameter.choices) - 1 if parameter.choices[-1] == "full" else len(parameter.choices)
        choices = (*parameter.choices[:place], "recipe", *parameter.choices[place:])
        return replace(parameter, choices=choices, compound={**parameter.compound, "recipe": written})

    def value(self, recipe: Recipe, key: str) -> Value:
        """The value of parameter ``key`` in ``recipe``, as it takes effect.

        Raises:
            UserError: no such parameter in this space.
        """
        return read(self._parameter(key), recipe, effective(recipe, self._cluster))

    def values(self, recipe: Recipe) -> dict[str, Value]:
        """The values of all parameters in ``recipe``."""
        return self._values(recipe, effective(recipe, self._cluster))

    def _values(self, recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, Value]:
        return {key: read(parameter, recipe, settings) for key, parameter in self.parameters.items()}

    def changed(self, recipe: Recipe, other: Recipe) -> dict[str, tuple[Value, Value]]:
        """Parameter -> (value in ``recipe``, value in ``other``), where they differ."""
        before, after = self.values(recipe), self.values(other)
        return {key: (before[key], after[key]) for key in before if before[key] != after[key]}

    def apply(self, recipe: Recipe, edits: Mapping[str, Value]) -> Recipe:
        """``recipe`` with parameters set, and everything that must move with them moved.

        What an edit names is never overruled: an illegal combination stays illegal and `problems` says so.

        Raises:
            UserError: no such parameter, or a compound has no such choice.
        """
        written: dict[str, Value] = {}
        for key, value in edits.items():
            parameter = self._parameter(key)
            if parameter.compound and value not in parameter.compound:
                raise UserError(
                    f"{key} has no choice {value!r}; choose one of {', '.join(map(str, parameter.choices))}"
                )
            written |= {name: spelled(self.baseline, name, v) for name, v in parameter.writes(value).items()}
        edited = write(recipe, written)
        return settle(edited, recipe, baseline=self.baseline, explicit=frozenset(written), cluster=self._cluster)

    def problems(self, recipe: Recipe) -> list[str]:
        """Why ``recipe`` may not run: rules of the stack it breaks, and changes that leave the space."""
        try:
            settings = effective(recipe, self._cluster)
            broken = [finding.message for finding in refusals(settings)]
        except UserError as error:
            return [str(error)]
        values = self._values(recipe, settings)
        outside = [f"{key} = {value} is outside the search space" for key, value in self._outside(values).items()]
        found = broken + outside + [self._refusal(name) for name in self._foreign_changes(recipe)]
        if not found and not self._points.has_layout(values):
            sizes = ", ".join(f"{key} = {values[key]}" for key in LAYOUT if key in values)
            found.append(f"the layout {sizes} is outside the search space")
        return found

    def is_legal(self, recipe: Recipe) -> bool:
        """`problems` has none to tell; quicker."""
        try:
            settings = effective(recipe, self._cluster)
            starts = can_start(settings)
        except UserError:
            return False
        values = self._values(recipe, settings)
        inside = not self._outside(values) and self._points.has_layout(values)
        return starts and inside and not self._foreign_changes(recipe)

    def _outside(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {key: value for key, value in values.items() if value not in self.parameters[key].choices}

    def _foreign_changes(self, recipe: Recipe) -> list[str]:
        """Settings and variables that differ from the baseline although no parameter governs them."""
        own, new = self._everything, _everything(recipe)
        moved = sorted(name for name in own.keys() | new.keys() if own.get(name) != new.get(name))
        return [name for name in moved if name not in self._governed]

    def _refusal(self, name: str) -> str:
        setting = registry().get(name)
        label = setting.flags[0] if setting is not None and setting.flags else name
        if setting is not None and setting.cls == "objective-changing":
            return f"{label} differs from the baseline, which changes the training objective"
        if setting is not None and setting.cls == "numerics-changing":
            return f"{label} differs from the baseline, which changes the numerics and was not approved"
        return f"{label} differs from the baseline and is not in the search space"

    def neighbours(self, recipe: Recipe, key: str) -> tuple[Value, ...]:
        """Other values to try: the next smaller and larger of an ordered parameter, else every other choice."""
        parameter, value = self._parameter(key), self.value(recipe, key)
        if not parameter.ordered or value not in parameter.choices:
            return tuple(choice for choice in parameter.choices if choice != value)
        place = parameter.choices.index(value)
        return parameter.choices[max(place - 1, 0) : place] + parameter.choices[place + 1 : place + 2]

    def enumerate_layouts(self) -> list[dict[str, int]]:
        """Every combination of ``tp, pp, cp, ep, etp, vpp, mbs`` that the divisibility rules allow."""
        return [dict(zip(LAYOUT, row, strict=True)) for row in self._points.layouts().tolist()]

    @cached_property
    def _points(self) -> Points:
        return Points(self.baseline, self._cluster, self.parameters)

    def recipe(self, point: Mapping[str, Value]) -> Recipe:
        """The recipe of a point: the baseline with these values, and everything that must move with them moved.

        A value of a parameter that does not apply beside the others is ignored, so any choice of one value per
        parameter is a point; a missing value is the baseline's. `problems` says whether the recipe may run.

        Raises:
            UserError: no such parameter, or no such choice.
        """
        return self._points.recipe(self._points.options(point))

    def point(self, recipe: Recipe) -> dict[str, Value]:
        """The values of the parameters that apply in ``recipe``. `recipe` makes it of them again, if it was made so.

        Raises:
            UserError: a value is outside the space.
        """
        return self._points.values(self._points.options(self.values(recipe)))

    def allows(self, point: Mapping[str, Value]) -> bool:
        """The recipe of ``point`` has no `problems`; by tables, without the recipe.

        Raises:
            UserError: no such parameter, or no such choice.
        """
        return self._points.census.allows(self._points.options(point))

    def count(self) -> int:
        """How many legal points there are, exactly."""
        return self._points.census.total

    def points(self) -> Iterator[dict[str, Value]]:
        """Every legal point once, lazily."""
        return (self._points.values(self._points.census.nth(number)) for number in range(self.count()))

    def sample(self, rng: np.random.Generator) -> Recipe:
        """The recipe of a legal point drawn uniformly: each of `count` has the same chance.

        Raises:
            UserError: no point is legal.
        """
        if not self.count():
            why = next(iter(self.problems(self.baseline)), "the model cannot be split over it")
            raise UserError(f"no recipe around this baseline is legal on {self._cluster.name}: {why}")
        return self._points.recipe(self._points.census.nth(int(rng.integers(self.count()))))

    def _parameter(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise UserError(f"{key} is not in the search space; it has {', '.join(self.parameters)}")
        return self.parameters[key]


def _everything(recipe: Recipe) -> dict[str, Any]:
    """Whatever makes a recipe what it is, defaults filled in, by name."""
    return {
        **defaults(),
        **recipe.settings,
        **{f"env.{name}": value for name, value in recipe.environment.items()},
        **{f"the unmodelled flag {flag}": text for flag, text in recipe.carried.items()},
        **{f"the version of {name}": text for name, text in recipe.versions.items()},
        "stack": recipe.stack,
    }


@remembered(last=4)
def search_space(baseline: Recipe, cluster: ClusterSpec, approvals: tuple[str, ...] = ()) -> SearchSpace:
    """The space around a baseline, one for all campaigns that share it: counting its points takes longer than a run.

    Raises:
        UserError: see `SearchSpace`.
    """
    return SearchSpace(baseline, cluster, approvals)
