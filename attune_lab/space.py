"""The search space: typed, conditional, constrained, and the same for every tuner."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.parameters import LAYOUT, Parameter, approvable, declared, legal_layouts
from attune_lab.recipe.constraints import violations
from attune_lab.recipe.coupling import SPLIT_KEYS, account_flags, settle
from attune_lab.recipe.effective import effective
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.registry import registry
from attune_lab.recipe.shape import defaults, shape_of
from simulator.hardware import ClusterSpec

MAX_TRIES = 2000
"""Draws before `SearchSpace.sample` gives up."""

_FOLLOWING = frozenset({*SPLIT_KEYS, "etp", "env.NCCL_GRAPH_REGISTER", "env.CUDA_DEVICE_MAX_CONNECTIONS"})
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

    def _with_own_choice(self, parameter: Parameter) -> Parameter:
        """``parameter`` with the baseline's value among its choices, called ``recipe`` when it is a combination."""
        own = _read(parameter, self.baseline, self._base)
        if own in parameter.choices:
            return parameter
        if not parameter.compound:
            return replace(parameter, choices=(*parameter.choices, own))
        written = {name: _stated(self.baseline, name) for name in parameter.settings}
        place = len(parameter.choices) - 1 if parameter.choices[-1] == "full" else len(parameter.choices)
        choices = (*parameter.choices[:place], "recipe", *parameter.choices[place:])
        return replace(parameter, choices=choices, compound={**parameter.compound, "recipe": written})

    def value(self, recipe: Recipe, key: str) -> Value:
        """The value of parameter ``key`` in ``recipe``, as it takes effect.

        Raises:
            UserError: no such parameter in this space.
        """
        return _read(self._parameter(key), recipe, effective(recipe, self._cluster))

    def values(self, recipe: Recipe) -> dict[str, Value]:
        """The values of all parameters in ``recipe``."""
        settings = effective(recipe, self._cluster)
        return {key: _read(parameter, recipe, settings) for key, parameter in self.parameters.items()}

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
            written |= {name: self._spelled(name, v) for name, v in parameter.writes(value).items()}
        settings = {name: value for name, value in written.items() if not name.startswith("env.")}
        variables = {name[4:]: _text(value) for name, value in written.items() if name.startswith("env.")}
        edited = recipe.with_settings(settings).with_environment(variables)
        return settle(edited, recipe, baseline=self.baseline, explicit=frozenset(written), cluster=self._cluster)

    def problems(self, recipe: Recipe) -> list[str]:
        """Why ``recipe`` may not run: rules of the stack it breaks, and changes that leave the space."""
        try:
            settings = effective(recipe, self._cluster)
            broken = [finding.message for finding in violations(settings) if finding.severity == "error"]
        except UserError as error:
            return [str(error)]
        outside = [
            f"{key} = {value} is outside the search space"
            for key, parameter in self.parameters.items()
            if (value := _read(parameter, recipe, settings)) not in parameter.choices
        ]
        return broken + outside + self._foreign_changes(recipe)

    def _foreign_changes(self, recipe: Recipe) -> list[str]:
        """Settings and variables that differ from the baseline although no parameter governs them."""
        own, new = _everything(self.baseline), _everything(recipe)
        moved = sorted(name for name in own.keys() | new.keys() if own.get(name) != new.get(name))
        return [self._refusal(name) for name in moved if name not in self._governed]

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
        return [dict(zip(LAYOUT, row, strict=True)) for row in self._layouts.tolist()]

    @cached_property
    def _layouts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return legal_layouts(self.parameters, self._base, shape_of(self.baseline))

    def sample(self, rng: np.random.Generator) -> Recipe:
        """A recipe drawn uniformly from the legal points: a layout first, then what applies to it; illegal draws
        are rejected whole.

        Raises:
            UserError: nothing legal in `MAX_TRIES` draws.
        """
        for _ in range(MAX_TRIES if len(self._layouts) else 0):
            candidate = self.apply(self.baseline, self._draw(rng))
            if not self.problems(candidate):
                return candidate
        raise UserError(
            f"no legal recipe in {MAX_TRIES} draws on {self._cluster.name}; use a cluster the model can be split over"
        )

    def _draw(self, rng: np.random.Generator) -> dict[str, Value]:
        """A value for every parameter that applies, given the ones before it."""
        layout = dict(zip(LAYOUT, self._layouts[rng.integers(len(self._layouts))].tolist(), strict=True))
        drawn: dict[str, Value] = {key: size for key, size in layout.items() if key in self.parameters}
        known = {**self._base, **layout, "vpp": layout["vpp"] if layout["vpp"] > 1 else None}
        known["sequence_parallel"] = layout["tp"] > 1
        drawn |= self._draw_split(layout, rng)
        for key, parameter in self.parameters.items():
            if key not in (*drawn, *SPLIT_KEYS) and parameter.applies_if.evaluate(known):
                drawn[key] = parameter.choices[rng.integers(len(parameter.choices))]
                known |= parameter.writes(drawn[key])
        return drawn

    def _draw_split(self, layout: Mapping[str, int], rng: np.random.Generator) -> dict[str, Value]:
        """What counts as a layer; nothing where only a layout string splits the layers legally."""
        legal = account_flags(self._base["num_layers"], layout["pp"] * layout["vpp"]) if layout["pp"] > 1 else []
        if not legal:
            return {}
        return dict(zip(("account_embedding", "account_loss"), legal[rng.integers(len(legal))], strict=True))

    def _parameter(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise UserError(f"{key} is not in the search space; it has {', '.join(self.parameters)}")
        return self.parameters[key]

    def _spelled(self, name: str, value: Value) -> Value:
        """``value`` as the baseline wrote it when it is the same; the stack's default stays unsaid where the baseline
        does not speak of the setting, and where there is nothing to write (a switch that is off, one virtual stage).
        """
        stated = _stated(self.baseline, name)
        if name.startswith("env."):
            return value
        default = defaults()[name]
        if value == (default if stated is None else stated):
            return stated
        unsaid = stated is None or isinstance(value, bool)
        return None if (value == default and unsaid) or (name == "vpp" and value == 1) else value


def _read(parameter: Parameter, recipe: Recipe, settings: Mapping[str, Any]) -> Value:
    """A parameter's value; a combination that is no choice reads ``other``."""
    if not parameter.compound:
        if parameter.key.startswith("env."):
            return _stated(recipe, parameter.key)
        value: Value = settings[parameter.key]
        return (value or 1) if parameter.key in LAYOUT else value
    actual = {name: _comparable(name, _stated(recipe, name)) for name in parameter.settings}
    for choice in parameter.choices:
        if all(actual[name] == _comparable(name, value) for name, value in parameter.writes(choice).items()):
            return choice
    return "other"


def _comparable(name: str, value: Value) -> Any:
    """Module lists compare as sets, an unset value as the stack's default."""
    value = defaults()[name] if value is None else value
    return frozenset(value) if isinstance(value, tuple) else value


def _stated(recipe: Recipe, name: str) -> Value:
    return recipe.environment.get(name[4:]) if name.startswith("env.") else recipe.settings.get(name)


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


def _text(value: Value) -> str | None:
    return None if value is None else str(value)
