"""The points of a search space: which values they have, the recipe each one is, and which of them are legal.

A point chooses one option on every axis. Sizes are axes, with the pipeline's in one: sizes, and what counts as a layer.
Every other parameter is an axis of its choices and, where it applies only sometimes, of one more: not to apply.
What an option does to the effective settings is read once; the rules then become small tables over the axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.counting import Bools, Census, Ints, Table
from attune_lab.parameters import LAYOUT, Parameter, layout_grid, read, spelled, stated, write
from attune_lab.recipe.constraints import Constraint, constraints
from attune_lab.recipe.coupling import KEPT_WHILE, SPLIT_KEYS, account_flags, required_environment, split_settings
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import Expression
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.shape import shape_of
from simulator.hardware import ClusterSpec

ACCOUNTS = ("account_embedding", "account_loss")
"""Parameters that say what else counts as a layer; they belong to the pipeline's sizes."""

_PIPELINE = ("pp", "vpp")
_SIZES = ("tp", "cp", "ep", "etp", "mbs")
_AXIS_OF_PIPELINE = len(_SIZES)
_KEPT_BY_WRITING = frozenset({"S04", "G07"})
"""Rules that no point can break: its recipe has the environment they ask for."""

Accounts = tuple[bool, bool]


@dataclass(frozen=True)
class Option:
    """One option of an axis.

    Attributes:
        values: parameters as they stand in the point; one that does not apply is missing.
        writes: settings and ``env.NAME`` of the recipe; None leaves the stack's default.
        variables: effective settings that some rule reads and that this axis moves.
    """

    values: Mapping[str, Value]
    writes: Mapping[str, Value]
    variables: Mapping[str, Any] = field(default_factory=dict)


class Points:
    """All points around one baseline, by the options they choose."""

    def __init__(
        self, baseline: Recipe, cluster: ClusterSpec, parameters: Mapping[str, Parameter], base: Mapping[str, Any]
    ) -> None:
        """Read what every option does.

        Args:
            base: effective settings of the baseline.

        ``axes`` then has the options of every axis, ``names`` what the axes are called.
        """
        self._baseline, self._cluster, self._parameters, self._base = baseline, cluster, parameters, base
        self._rules = [rule for rule in constraints() if rule.severity == "error" and rule.id not in _KEPT_BY_WRITING]
        self._own: dict[str, Value] = {key: read(parameter, baseline, base) for key, parameter in parameters.items()}
        self._levers = [key for key in parameters if key not in (*LAYOUT, *ACCOUNTS)]
        self._conditions = {key: parameters[key].applies_if for key in self._levers if parameters[key].applies_if.names}
        self._followers = [name for name in KEPT_WHILE if baseline.settings.get(name)]
        self._conditions |= {name: KEPT_WHILE[name] for name in self._followers}
        self._grid, self.legal_layouts = layout_grid(parameters, base, shape_of(baseline))
        self._sizes = {key: axis.tolist() for key, axis in zip(LAYOUT, self._grid, strict=True)}
        self._splits: dict[tuple[int, int], dict[Accounts, int]] = {}
        self.axes = [*map(self._size_axis, _SIZES), self._pipeline_axis(), *map(self._lever_axis, self._levers)]
        self.axes += map(self._follower_axis, self._followers)
        self.names = (*_SIZES, "pipeline", *self._levers, *self._followers)

    # What the axes are

    def _size_axis(self, key: str) -> list[Option]:
        if key not in self._parameters:
            return [Option({}, {})]
        options = []
        for size in self._parameters[key].choices:
            follows = key == "tp" and "sequence_parallel" not in self._parameters
            writes = {key: spelled(self._baseline, key, size)} | (self._sequence_parallel(size) if follows else {})
            options.append(Option({key: size}, writes))
        return self._observed(options, {"etp": self._base["etp"]} if key == "tp" and "etp" in self._parameters else {})

    def _sequence_parallel(self, tp: Value) -> dict[str, Value]:
        """Sequence parallelism where it comes and goes with tensor parallelism."""
        own = stated(self._baseline, "sequence_parallel")
        if tp == 1:
            return {"sequence_parallel": own if self._own["tp"] == 1 else None}
        return {"sequence_parallel": own or True}

    def _pipeline_axis(self) -> list[Option]:
        options: list[Option] = []
        for pp, chunks in itertools.product(*(self._sizes[key] for key in _PIPELINE)):
            if pp > 1 or chunks == 1:
                choices = self._accounts(pp, chunks)
                numbers = range(len(options), len(options) + len(choices))
                self._splits[pp, chunks] = dict(zip(choices, numbers, strict=True))
                options += [self._split(pp, chunks, accounts) for accounts in choices]
        return self._observed(options)

    def _accounts(self, pp: int, chunks: int) -> list[Accounts]:
        """What may count as a layer (embedding, loss) besides the layers; nothing where that makes no legal split."""
        legal = account_flags(self._base["num_layers"], pp * chunks) if pp > 1 else []
        own = [self._own_accounts] if (pp, chunks) == self._own_pipeline else []
        return sorted({*legal, *own}) or [(False, False)]

    @property
    def _own_pipeline(self) -> tuple[Value, ...]:
        return tuple(self._own[key] for key in _PIPELINE)

    @property
    def _own_accounts(self) -> Accounts:
        return bool(self._own["account_embedding"]), bool(self._own["account_loss"])

    def _split(self, pp: int, chunks: int, accounts: Accounts) -> Option:
        """One split of the layers; the baseline's own where its sizes and accounts are chosen."""
        if ((pp, chunks), accounts) == (self._own_pipeline, self._own_accounts):
            writes: dict[str, Value] = {key: self._baseline.settings.get(key) for key in SPLIT_KEYS}
        else:
            mtp_layers = self._base["mtp_num_layers"] or 0
            writes = split_settings(self._base["num_layers"], pp, chunks, flags=accounts, mtp_layers=mtp_layers)
        values: dict[str, Value] = {"pp": pp}
        if pp > 1:
            values |= {"vpp": chunks, **dict(zip(ACCOUNTS, accounts, strict=True))}
        return Option(values, {"pp": spelled(self._baseline, "pp", pp), **writes})

    def _lever_axis(self, key: str) -> list[Option]:
        """The choices of a parameter and, last, that it does not apply.

        They are read with tensor parallelism and the last one without, as sequence parallelism has no effect there.
        """
        parameter = self._parameters[key]
        options = []
        for choice in parameter.choices:
            writes = {name: spelled(self._baseline, name, value) for name, value in parameter.writes(choice).items()}
            options.append(Option({key: choice}, writes))
        options = self._observed(options, {"tp": max(self._base["tp"], 2)})
        if key in self._conditions:
            applies = self._conditions[key].evaluate(self._base)
            writes = {name: None if applies else stated(self._baseline, name) for name in parameter.settings}
            without = self._effective({"tp": 1, **writes})
            options.append(Option({}, writes, {name: without[name] for name in options[0].variables}))
        return options

    def _follower_axis(self, name: str) -> list[Option]:
        """No choice: the baseline's setting where it is kept and, last, where it is dropped."""
        return self._observed([Option({}, {name: self._baseline.settings[name]}), Option({}, {name: None})])

    def _observed(self, options: Sequence[Option], beside: Mapping[str, Value] | None = None) -> list[Option]:
        """The options with the variables they move, read while ``beside`` is written too."""
        seen = [self._effective({**(beside or {}), **option.writes}) for option in options]
        moved = [name for name in seen[0] if any(values[name] != seen[0][name] for values in seen)]
        return [
            replace(option, variables={name: values[name] for name in moved})
            for option, values in zip(options, seen, strict=True)
        ]

    def _effective(self, writes: Mapping[str, Value]) -> dict[str, Any]:
        values = effective(write(self._baseline, writes), self._cluster)
        return {name: values[name] for name in self._read_names}

    @cached_property
    def _read_names(self) -> list[str]:
        expressions = [*(rule.violated for rule in self._rules), *self._conditions.values()]
        names = {name for expression in expressions for name in expression.names}
        needed = {"cuda_graph_impl", "expandable_segments", "ep_overlap", "tp", "cp"}
        return sorted((names | needed) & self._base.keys())

    # From a point to its options and its recipe

    def options(self, point: Mapping[str, Value]) -> list[int]:
        """The options a point chooses; a value that does not apply is ignored, a missing one is the baseline's.

        Raises:
            UserError: no such parameter, or no such choice.
        """
        wanted = {**self._own, **{key: self._choice(key, value) for key, value in point.items()}}
        chosen = [self._parameters[key].choices.index(wanted[key]) if key in wanted else 0 for key in _SIZES]
        chosen.append(self._pipeline_option(wanted))
        known = dict(self._base)
        for axis, option in zip(self.axes, chosen, strict=False):
            known |= axis[option].variables
        for axis, key in zip(self.axes[len(chosen) :], (*self._levers, *self._followers), strict=True):
            if key in self._conditions and not self._conditions[key].evaluate(known):
                chosen.append(len(axis) - 1)
            else:
                chosen.append(self._parameters[key].choices.index(wanted[key]) if key in self._parameters else 0)
            known |= axis[chosen[-1]].variables
        return chosen

    def _choice(self, key: str, value: Value) -> Value:
        if key not in self._parameters:
            raise UserError(f"{key} is not in the search space; it has {', '.join(self._parameters)}")
        choices = self._parameters[key].choices
        if value not in choices:
            raise UserError(f"{key} has no choice {value!r}; choose one of {', '.join(map(str, choices))}")
        return value

    def _pipeline_option(self, wanted: Mapping[str, Value]) -> int:
        pp, chunks = (int(str(wanted[key])) for key in _PIPELINE)
        splits = self._splits[pp, chunks if pp > 1 else 1]
        left = list(splits)
        for place, key in enumerate(ACCOUNTS):
            left = [accounts for accounts in left if accounts[place] == wanted[key]] or left
        return splits[left[0]]

    def values(self, options: Sequence[int]) -> dict[str, Value]:
        """The point that chooses these options, in the order of declaration."""
        values: dict[str, Value] = {}
        for axis, option in zip(self.axes, options, strict=True):
            values |= axis[option].values
        return {key: values[key] for key in self._parameters if key in values}

    def recipe(self, options: Sequence[int]) -> Recipe:
        """The recipe of the point that chooses these options."""
        writes: dict[str, Value] = {}
        known = dict(self._base)
        for axis, option in zip(self.axes, options, strict=True):
            writes |= axis[option].writes
            known |= axis[option].variables
        if writes.get("etp") == known["tp"] and stated(self._baseline, "etp") is None:
            writes["etp"] = None  # inherited from tensor parallelism, as the baseline has it
        writes |= {f"env.{name}": value for name, value in required_environment(known).items()}
        return write(self._baseline, writes)

    def has_layout(self, sizes: Mapping[str, Value]) -> bool:
        """The divisibility rules hold for these sizes, or they are the baseline's own."""
        if all(sizes[key] == self._own[key] for key in LAYOUT if key in self._own):
            return True
        places = [np.flatnonzero(axis == sizes.get(key, 1)) for key, axis in zip(LAYOUT, self._grid, strict=True)]
        return bool(self.legal_layouts[np.ix_(*places)].any())

    def layouts(self) -> Ints:
        """Every combination of sizes that the divisibility rules allow, shape (n, 7) in the order of `LAYOUT`."""
        places = np.nonzero(self.legal_layouts)
        return np.stack([axis[place] for axis, place in zip(self._grid, places, strict=True)], axis=1)

    # Which points are legal

    @cached_property
    def census(self) -> Census:
        """The legal points, as choices of options."""
        return Census([len(axis) for axis in self.axes], self.rows(), self.tables())

    def rows(self) -> Ints:
        """The layouts as options of the sizes and the pipeline, shape (n, 6), the baseline's own among them."""
        legal = self.legal_layouts.copy()
        own = [self._own.get(key, 1) for key in LAYOUT]
        legal[tuple(int(np.flatnonzero(axis == size)[0]) for axis, size in zip(self._grid, own, strict=True))] = True
        place = dict(zip(LAYOUT, np.nonzero(legal), strict=True))
        first, count = self._split_numbers()
        counts = count[place["pp"], place["vpp"]]
        row = np.repeat(np.arange(len(counts)), counts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        split = first[place["pp"], place["vpp"]][row] + nth
        return np.stack([*(place[key][row] for key in _SIZES), split], axis=1)

    def _split_numbers(self) -> tuple[Ints, Ints]:
        """The first option, and how many there are, of the pipeline's axis by places of its two sizes."""
        splits = [[self._splits.get((pp, chunks), {}) for chunks in self._sizes["vpp"]] for pp in self._sizes["pp"]]
        first = np.array([[min(split.values(), default=0) for split in row] for row in splits], dtype=np.int64)
        return first, np.array([[len(split) for split in row] for row in splits], dtype=np.int64)

    def tables(self) -> Iterator[Table]:
        """What goes together: whether each parameter applies, and every rule of the stack."""
        for number, key in enumerate((*self._levers, *self._followers), start=_AXIS_OF_PIPELINE + 1):
            if key in self._conditions:
                yield self._applicability(number, self._conditions[key])
        for rule in self._rules:
            yield self._table(rule.violated.names, partial(_kept, rule))

    def _applicability(self, number: int, condition: Expression) -> Table:
        """The last option of an axis, not to apply, goes together with all that breaks its condition, and no other."""
        holds = self._table(condition.names, lambda values: bool(condition.evaluate(values)))
        applies = np.arange(len(self.axes[number])) < len(self.axes[number]) - 1
        return Table((*holds.axes, number), holds.allowed[..., None] == applies)

    def _table(self, names: Iterable[str], test: Callable[[Mapping[str, Any]], bool]) -> Table:
        """Where ``test`` holds, over the axes that move a variable it reads."""
        read_names = [name for name in names if name in self._base]
        base = {name: self._base[name] for name in read_names}
        axes, kinds, places = [], [], []
        for number, axis in enumerate(self.axes):
            moved = [name for name in read_names if name in axis[0].variables]
            if moved:
                seen = [tuple(option.variables[name] for name in moved) for option in axis]
                different = list(dict.fromkeys(seen))
                axes.append(number)
                kinds.append([dict(zip(moved, values, strict=True)) for values in different])
                places.append(np.array([different.index(values) for values in seen]))
        outcomes = [test({**base, **_merged(combination)}) for combination in itertools.product(*kinds)]
        allowed: Bools = np.array(outcomes, dtype=np.bool_).reshape([len(kind) for kind in kinds])
        return Table(tuple(axes), allowed[np.ix_(*places)] if places else allowed)


def _merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for mapping in mappings for name, value in mapping.items()}


def _kept(rule: Constraint, values: Mapping[str, Any]) -> bool:
    """The rule is not broken, and makes sense of the values."""
    try:
        return not rule.violated.evaluate(values)
    except ValueError:
        return False
