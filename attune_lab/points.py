"""The points of a search space: which values they have, the recipe each one is, and which of them are legal.

A point chooses one option on every axis (`attune_lab.axes`). What an option does to the settings is read once; the
rules then become small tables over the axes, and `attune_lab.counting` does the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from attune_lab.axes import ACCOUNTS, PIPELINE, SIZES, Accounts, Axes
from attune_lab.contracts import UserError
from attune_lab.counting import Bools, Census, Ints, Table
from attune_lab.parameters import LAYOUT, Parameter, layout_grid, read, stated, write
from attune_lab.recipe.constraints import Constraint, constraints
from attune_lab.recipe.coupling import KEPT_WHILE, required_environment
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import Expression
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.shape import shape_of
from simulator.hardware import ClusterSpec

_KEPT_BY_WRITING = frozenset({"S04", "G07"})
"""Rules that no point can break: its recipe has the environment they ask for."""


class Points:
    """All points around one baseline, by the options they choose."""

    def __init__(self, baseline: Recipe, cluster: ClusterSpec, parameters: Mapping[str, Parameter]) -> None:
        """Read what every option does; ``axes`` then has what there is to choose."""
        self._baseline, self._parameters, self._base = baseline, parameters, effective(baseline, cluster)
        self._rules = [rule for rule in constraints() if rule.severity == "error" and rule.id not in _KEPT_BY_WRITING]
        self._own = {key: read(parameter, baseline, self._base) for key, parameter in parameters.items()}
        self._grid, self._divides = layout_grid(parameters, self._base, shape_of(baseline))
        self.axes = Axes(baseline, cluster, parameters, self._read_names()).build()
        self._splits = self._numbered_splits()

    def _read_names(self) -> list[str]:
        """Effective settings that a rule, a condition or the environment depends on."""
        conditions = [*KEPT_WHILE.values(), *(parameter.applies_if for parameter in self._parameters.values())]
        expressions = [*(rule.violated for rule in self._rules), *conditions]
        needed = {"tp", "cp", "ep_overlap", "cuda_graph_impl", "expandable_segments"}
        return sorted(needed.union(*(expression.names for expression in expressions)) & self._base.keys())

    def _numbered_splits(self) -> dict[tuple[Value, Value], dict[Accounts, int]]:
        """The options of the pipeline by its two sizes, then by what counts as a layer."""
        splits: dict[tuple[Value, Value], dict[Accounts, int]] = {}
        for number, option in enumerate(self.axes[len(SIZES)].options):
            embedding, loss = (bool(option.values.get(key)) for key in ACCOUNTS)
            splits.setdefault((option.values["pp"], option.values.get("vpp", 1)), {})[embedding, loss] = number
        return splits

    # From a point to its options and its recipe

    def options(self, point: Mapping[str, Value]) -> list[int]:
        """The options a point chooses; a value that does not apply is ignored, a missing one is the baseline's.

        Raises:
            UserError: no such parameter, or no such choice.
        """
        wanted = {**self._own, **{key: self._choice(key, value) for key, value in point.items()}}
        chosen: list[int] = []
        known = dict(self._base)
        for axis in self.axes:
            if axis.key == "pipeline":
                option = self._split(wanted)
            elif axis.condition is not None and not axis.condition.evaluate(known):
                option = len(axis.options) - 1
            else:
                option = self._parameters[axis.key].choices.index(wanted[axis.key]) if axis.key in wanted else 0
            chosen.append(option)
            known |= axis.options[option].variables
        return chosen

    def _choice(self, key: str, value: Value) -> Value:
        if key not in self._parameters:
            raise UserError(f"{key} is not in the search space; it has {', '.join(self._parameters)}")
        choices = self._parameters[key].choices
        if value not in choices:
            raise UserError(f"{key} has no choice {value!r}; choose one of {', '.join(map(str, choices))}")
        return value

    def _split(self, wanted: Mapping[str, Value]) -> int:
        """The split with the sizes wanted and, as far as the layers come out even, what is to count as a layer."""
        pp, chunks = (wanted[key] for key in PIPELINE)
        splits = self._splits[pp, 1 if pp == 1 else chunks]
        left = list(splits)
        for place, key in enumerate(ACCOUNTS):
            left = [accounts for accounts in left if accounts[place] == wanted[key]] or left
        return splits[left[0]]

    def values(self, options: Sequence[int]) -> dict[str, Value]:
        """The point that chooses these options, in the order of declaration."""
        values: dict[str, Value] = {}
        for axis, option in zip(self.axes, options, strict=True):
            values |= axis.options[option].values
        return {key: values[key] for key in self._parameters if key in values}

    def recipe(self, options: Sequence[int]) -> Recipe:
        """The recipe of the point that chooses these options."""
        writes: dict[str, Value] = {}
        known = dict(self._base)
        for axis, option in zip(self.axes, options, strict=True):
            writes |= axis.options[option].writes
            known |= axis.options[option].variables
        if writes.get("etp") == known["tp"] and stated(self._baseline, "etp") is None:
            writes["etp"] = None  # inherited from tensor parallelism, as the baseline has it
        writes |= {f"env.{name}": value for name, value in required_environment(known).items()}
        return write(self._baseline, writes)

    # Layouts

    def layouts(self) -> Ints:
        """Every combination of sizes that the divisibility rules allow, shape (n, 7) in the order of `LAYOUT`."""
        places = np.nonzero(self._divides)
        return np.stack([axis[place] for axis, place in zip(self._grid, places, strict=True)], axis=1)

    def has_layout(self, sizes: Mapping[str, Value]) -> bool:
        """The divisibility rules hold for these sizes, or they are the baseline's own."""
        if all(sizes[key] == self._own[key] for key in LAYOUT if key in self._own):
            return True
        places = [np.flatnonzero(axis == sizes.get(key, 1)) for key, axis in zip(LAYOUT, self._grid, strict=True)]
        return bool(self._divides[np.ix_(*places)].any())

    def rows(self) -> Ints:
        """The layouts as options of the first axes, shape (n, 6), the baseline's own among them."""
        divides = self._divides.copy()
        own = [self._own.get(key, 1) for key in LAYOUT]
        divides[np.ix_(*(axis == size for axis, size in zip(self._grid, own, strict=True)))] = True
        place = dict(zip(LAYOUT, np.nonzero(divides), strict=True))
        pps, chunks = (self._grid[LAYOUT.index(key)].tolist() for key in PIPELINE)
        splits = [[self._splits.get((pp, chunk), {}) for chunk in chunks] for pp in pps]
        first, count = (
            np.array([[of(split.values()) for split in row] for row in splits])[place["pp"], place["vpp"]]
            for of in (partial(min, default=0), len)
        )
        row = np.repeat(np.arange(len(count)), count)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return np.stack([*(place[key][row] for key in SIZES), first[row] + nth], axis=1)

    # Which points are legal

    @cached_property
    def census(self) -> Census:
        """The legal points, as choices of options."""
        return Census([len(axis.options) for axis in self.axes], self.rows(), self.tables())

    def tables(self) -> Iterator[Table]:
        """What goes together: where each parameter applies, and every rule of the stack."""
        for number, axis in enumerate(self.axes):
            if axis.condition is not None:
                yield self._applicability(number, axis.condition)
        for rule in self._rules:
            yield self._table(rule.violated.names, partial(_kept, rule))

    def _applicability(self, number: int, condition: Expression) -> Table:
        """The last option of an axis, not to apply, goes together with all that breaks its condition, and no other."""
        holds = self._table(condition.names, lambda values: bool(condition.evaluate(values)))
        last = len(self.axes[number].options) - 1
        return Table((*holds.axes, number), holds.allowed[..., None] == (np.arange(last + 1) < last))

    def _table(self, names: Iterable[str], test: Callable[[Mapping[str, Any]], bool]) -> Table:
        """Where ``test`` holds, over the axes that move a variable it reads."""
        base = {name: self._base[name] for name in names if name in self._base}
        axes, kinds, places = [], [], []
        for number, axis in enumerate(self.axes):
            moved = [name for name in base if name in axis.options[0].variables]
            if moved:
                seen = [tuple(option.variables[name] for name in moved) for option in axis.options]
                different = list(dict.fromkeys(seen))
                axes.append(number)
                kinds.append([dict(zip(moved, values, strict=True)) for values in different])
                places.append(np.array([different.index(values) for values in seen]))
        outcomes = [test(_merged(base, *combination)) for combination in itertools.product(*kinds)]
        allowed: Bools = np.array(outcomes, dtype=np.bool_).reshape([len(kind) for kind in kinds])
        return Table(tuple(axes), allowed[np.ix_(*places)] if places else allowed)


def _merged(*mappings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for mapping in mappings for name, value in mapping.items()}


def _kept(rule: Constraint, values: Mapping[str, Any]) -> bool:
    """The rule is not broken, and makes sense of the values."""
    try:
        return not rule.violated.evaluate(values)
    except ValueError:
        return False
