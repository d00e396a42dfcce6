"""Exact counting of the ways to choose one option on every axis so that small tables of what goes together hold.

The first axes are given as rows: only those combinations exist. Rows that no table can tell apart are of one kind,
and the other axes are counted once per kind, by eliminating them one after the other.

**Source:** bucket elimination: R. Dechter, "Bucket elimination: A unifying framework for reasoning", Artificial
Intelligence 113 (1999), doi:10.1016/S0004-3702(99)00059-4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Counts = NDArray[Any]
"""Whole numbers: int64, or Python's own where those could overflow."""


@dataclass(frozen=True)
class Table:
    """Which options of a few axes go together.

    Attributes:
        axes: numbers of the axes, ascending.
        allowed: one dimension per axis, true where the combination may be.
    """

    axes: tuple[int, ...]
    allowed: Bools

    def reduced(self) -> Table:
        """The same table without the axes that make no difference."""
        axes, allowed = list(self.axes), self.allowed
        for place in reversed(range(len(axes))):
            first = allowed.take([0], axis=place)
            if (allowed == first).all():
                allowed = first.squeeze(axis=place)
                del axes[place]
        return Table(tuple(axes), allowed)


class _Factor(NamedTuple):
    """Counts by kind of row (the first dimension) and the options of ``axes``."""

    axes: tuple[int, ...]
    counts: Counts

    def spread(self, scope: Sequence[int]) -> Counts:
        """The counts with a dimension for every axis of ``scope``, of size 1 where they do not depend on it."""
        sizes = iter(self.counts.shape[1:])
        return self.counts.reshape(len(self.counts), *(next(sizes) if axis in self.axes else 1 for axis in scope))


class Census:
    """Every choice of one option per axis that all tables allow: how many there are, and each by its number."""

    def __init__(self, sizes: Sequence[int], rows: Ints, tables: Iterable[Table]) -> None:
        """Count.

        Args:
            sizes: options per axis.
            rows: shape (n, k), the combinations of options that the first k axes may take.
            tables: over any axes.
        """
        self._sizes, self._fixed = tuple(sizes), rows.shape[1]
        whole = math.prod(self._sizes[self._fixed :]) < 2**62
        self._dtype: type[Any] = np.int64 if whole else object
        reduced = [table.reduced() for table in tables]
        held: Bools = np.ones(len(rows), dtype=np.bool_)
        for table in reduced:
            if all(axis < self._fixed for axis in table.axes):
                held &= table.allowed[_places(rows, table.axes)]
        rows = rows[held]
        kinds, factors = self._kinds(rows, reduced)
        self._steps, completions = self._eliminated(factors, int(kinds.max(initial=-1)) + 1)
        order = np.argsort(kinds, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(kinds[order], np.arange(len(completions) + 1)).tolist()
        self._completions = [int(count) for count in completions]
        self._kind_of = np.full(self._sizes[: self._fixed], -1, dtype=np.int64)
        self._kind_of[_places(rows, range(self._fixed))] = kinds
        heaps = zip(self._starts[:-1], self._starts[1:], self._completions, strict=True)
        self._by_kind = [(end - start) * count for start, end, count in heaps]
        self.total: int = sum(self._by_kind)

    def _kinds(self, rows: Ints, tables: Sequence[Table]) -> tuple[Ints, list[_Factor]]:
        """The kind of every row, and for the other axes what the tables allow to each kind."""
        key, bound = np.zeros(len(rows), dtype=np.int64), 1
        seen: list[tuple[tuple[int, ...], Bools, Ints]] = []
        for table in tables:
            head = [axis for axis in table.axes if axis < self._fixed]
            rest = table.axes[len(head) :]
            if not rest:
                continue
            shape = table.allowed.shape
            patterns, number = np.unique(
                table.allowed.reshape(math.prod(shape[: len(head)]), -1), axis=0, return_inverse=True
            )
            of_row = number.reshape(shape[: len(head)])[_places(rows, head)] * np.ones(len(rows), dtype=np.int64)
            if bound * len(patterns) >= 2**62:
                key, bound = np.unique(key, return_inverse=True)[1], len(rows)
            key, bound = key * len(patterns) + of_row, bound * len(patterns)
            seen.append((rest, patterns.reshape(len(patterns), *shape[len(head) :]), of_row))
        _, first, kinds = np.unique(key, return_index=True, return_inverse=True)
        return kinds, [_Factor(rest, patterns[of_row[first]].astype(self._dtype)) for rest, patterns, of_row in seen]

    def _eliminated(self, factors: list[_Factor], kinds: int) -> tuple[list[_Factor], Counts]:
        """For every axis that is not in the rows, in order, how many ways the axes that hang on it can be completed,
        by the axes before it and its own option; and the completions of each kind of row.
        """
        steps = []
        for axis in reversed(range(self._fixed, len(self._sizes))):
            here = [factor for factor in factors if axis in factor.axes]
            scope = sorted({axis}.union(*(factor.axes for factor in here)))
            counts = np.ones((kinds, *(self._sizes[a] for a in scope)), dtype=self._dtype)
            for factor in here:
                counts = counts * factor.spread(scope)
            steps.append(_Factor(tuple(scope[:-1]), counts))
            summed = _Factor(tuple(scope[:-1]), counts.sum(axis=-1))
            factors = [*(factor for factor in factors if axis not in factor.axes), summed]
        completions = np.ones(kinds, dtype=self._dtype)
        for factor in factors:
            completions = completions * factor.counts
        return steps[::-1], completions

    def allows(self, options: Sequence[int]) -> bool:
        """Every table allows the choice ``options``, one number per axis."""
        kind = int(self._kind_of[tuple(options[: self._fixed])])
        return kind >= 0 and all(
            step.counts[(kind, *(options[axis] for axis in step.axes), option)] > 0
            for step, option in zip(self._steps, options[self._fixed :], strict=True)
        )

    def nth(self, number: int) -> list[int]:
        """The choice of that number, one option per axis: a one-to-one map from 0 .. ``total`` - 1.

        Raises:
            IndexError: no such number.
        """
        if not 0 <= number < self.total:
            raise IndexError(f"number {number} of {self.total}")
        kind, number = _located(self._by_kind, number)
        row, number = divmod(number, self._completions[kind])
        options: list[int] = self._rows[self._starts[kind] + row].tolist()
        for step in self._steps:
            counts = step.counts[(kind, *(options[axis] for axis in step.axes))].tolist()
            # What is left of the number says how to complete the axes that do not hang on this one (quotient) and
            # which of the ways through this one to take (remainder).
            others, here = divmod(number, sum(counts))
            option, here = _located(counts, here)
            number = others * counts[option] + here
            options.append(option)
        return options


def _places(rows: Ints, axes: Iterable[int]) -> tuple[Ints, ...]:
    """Where the rows stand in a table over ``axes``."""
    return tuple(rows[:, axis] for axis in axes)


def _located(counts: Sequence[int], number: int) -> tuple[int, int]:
    """Which of the heaps of ``counts`` the item ``number`` lies in, and its place there."""
    for heap, count in enumerate(counts):
        if number < count:
            return heap, number
        number -= count
    raise IndexError(number)
