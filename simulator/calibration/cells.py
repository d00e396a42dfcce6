"""Reading the cells of a measurement row, and the two ways in which that can fail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_TRUE, _FALSE = frozenset({"1", "1.0", "true", "True", "yes"}), frozenset({"0", "0.0", "false", "False", "no"})

_MOST = 2**40  # products of a few such numbers stay exact or finite


class InvalidCell(ValueError):
    """A cell that cannot be read; the message names the column and what it needs."""


class Unsupported(ValueError):
    """The row asks for something the simulator does not price; the message says what."""


def parse_knobs(text: str) -> dict[str, str]:
    """``k=v;k=v`` as a dictionary; pieces without ``=`` become keys with an empty value."""
    pairs = (piece.partition("=") for piece in text.split(";") if piece.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def whole(cells: Mapping[str, str], column: str, default: int | None = None) -> int:
    """The whole number in ``column``, 0 to 2^40; ``default`` where it is blank.

    Raises:
        InvalidCell: no whole number.
        Unsupported: blank, and no default.
    """
    text = cells.get(column, "")
    if text == "":
        if default is None:
            raise Unsupported(f"column '{column}' is blank and has no default")
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= _MOST:
        raise InvalidCell(f"column '{column}' holds '{text[:40]}'; a whole number is needed")
    return int(value)


def positive(cells: Mapping[str, str], column: str, default: int | None = None) -> int:
    """As `whole`, with 0 read as 1: some tables write 0 for "not split"."""
    return max(whole(cells, column, default), 1)


def number(cells: Mapping[str, str], column: str, default: float) -> float:
    """The number in ``column``, 0 to 2^40; ``default`` where it is blank.

    Raises:
        InvalidCell: no such number.
    """
    text = cells.get(column, "")
    if text == "":
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise InvalidCell(f"column or knob '{column}' holds '{text[:40]}'; a number of 0 or more is needed")
    return value


def flag(cells: Mapping[str, str], column: str, default: bool) -> bool:
    """Whether ``column`` is set (1, true, yes); ``default`` where it is blank.

    Raises:
        InvalidCell: neither a yes nor a no.
    """
    text = cells.get(column, "")
    if text == "":
        return default
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InvalidCell(f"column or knob '{column}' holds '{text[:40]}'; 1 or 0 is needed")


def choice(table: Mapping[str, Any], text: str, column: str) -> Any:
    """The value of ``text`` in ``table``.

    Raises:
        Unsupported: not in the table; the message lists what is.
    """
    if text not in table:
        raise Unsupported(f"{column} '{text[:40]}' is not one of {', '.join(sorted(table))}")
    return table[text]
