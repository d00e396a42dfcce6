"""Counting against going through everything, on random tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.counting import Census, Table


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], np.ndarray, list[Table]]:
    """Sizes of axes, rows over the first of them, and tables over any."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    fixed = draw(st.integers(1, len(sizes)))
    every = list(itertools.product(*map(range, sizes[:fixed])))
    rows = draw(st.lists(st.sampled_from(every), unique=True))
    tables = []
    for _ in range(draw(st.integers(0, 5))):
        axes = tuple(sorted(draw(st.sets(st.integers(0, len(sizes) - 1), max_size=3))))
        shape = [sizes[axis] for axis in axes]
        cells = int(np.prod(shape))
        allowed = draw(st.lists(st.sampled_from([True, True, False]), min_size=cells, max_size=cells))
        tables.append(Table(axes, np.array(allowed, dtype=np.bool_).reshape(shape)))
    return sizes, np.array(rows, dtype=np.int64).reshape(-1, fixed), tables


def allowed_by(tables: list[Table], options: tuple[int, ...]) -> bool:
    return all(table.allowed[tuple(options[axis] for axis in table.axes)] for table in tables)


@given(problems())
def test_counts_numbers_and_allows_what_the_tables_allow(problem) -> None:
    sizes, rows, tables = problem
    census = Census(sizes, rows, tables)
    given_rows = set(map(tuple, rows.tolist()))
    every = set(itertools.product(*map(range, sizes)))
    legal = {each for each in every if each[: rows.shape[1]] in given_rows and allowed_by(tables, each)}
    assert census.total == len(legal)
    assert {tuple(census.nth(number)) for number in range(census.total)} == legal
    assert {each for each in every if census.allows(each)} == legal
    with pytest.raises(IndexError):
        census.nth(census.total)


def test_counts_beyond_64_bits() -> None:
    """Thirty axes of ten options, of which the first two must differ."""
    different = Table((1, 2), ~np.eye(10, dtype=np.bool_))
    census = Census([2, *[10] * 30], np.array([[0], [1]]), [different])
    assert census.total == 2 * 90 * 10**28
    last = census.nth(census.total - 1)
    assert (last[0], last[1:3], set(last[3:])) == (1, [9, 8], {9})


@given(problems())
def test_an_axis_without_a_difference_leaves_its_table(problem) -> None:
    for table in problem[2]:
        reduced = table.reduced()
        assert set(reduced.axes) <= set(table.axes)
        for options in itertools.product(*map(range, table.allowed.shape)):
            places = tuple(option for axis, option in zip(table.axes, options, strict=True) if axis in reduced.axes)
            assert reduced.allowed[places] == table.allowed[options]
