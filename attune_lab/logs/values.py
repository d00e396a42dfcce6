"""Numbers as logs print them. Whatever is not one is None: a log is a stranger's text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_SUFFIXED = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s?([KMGBT]?)", re.ASCII)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?", re.ASCII)
_FACTORS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MAX_DIGITS = 40
_MAX_COLUMNS = 64
_MAX_NAME = 80


def number(text: str) -> float | None:
    """The number that the whole text is, nan and infinities among them."""
    text = text.strip()
    return float(text) if len(text) <= _MAX_DIGITS and _NUMBER.fullmatch(text) else None


def suffixed(text: str) -> float | None:
    """The number that the text is, ``12.5K`` being 12,500; K, M, G or B, and T are powers of 1000."""
    text = text.strip()
    match = _SUFFIXED.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    return float(match[1]) * _FACTORS[match[2]] if match else number(text)


def whole(text: str) -> int | None:
    """The count that the text is; None beyond what any log counts."""
    text = text.strip()
    return int(text) if len(text) <= 15 and text.isascii() and text.isdigit() else None


def pairs(items: Iterable[str], separator: str = ":") -> Iterator[tuple[str, str]]:
    """(name, value) of items such as ``lm loss: 2.5``, split at their only separator; others are left out."""
    for count, item in enumerate(items):
        if count == _MAX_COLUMNS:
            return
        name, found, value = item.rpartition(separator)
        if found and len(name) <= _MAX_NAME and separator not in name:
            yield sys.intern(name.strip()), value.strip()


def stamp_s(text: str) -> float | None:
    """Seconds since some fixed day of the first ``YYYY-MM-DD HH:MM:SS[,ms]`` in the text."""
    match = _STAMP.search(text)
    if not match:
        return None
    try:
        moment = datetime.fromisoformat(f"{match[1]} {match[2]}")
    except ValueError:  # the 31st of February
        return None
    return (moment - datetime(2000, 1, 1)).total_seconds() + float(f"0.{match[3] or 0}")
