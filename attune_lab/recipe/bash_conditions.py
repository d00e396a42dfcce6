"""Outcomes of shell tests over known words; what needs a run is None."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

_ORDER: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """Conjunction where None is undecided."""
    found = list(outcomes)
    return False if False in found else None if None in found else True


def any_of(outcomes: Iterable[bool | None]) -> bool | None:
    """Disjunction where None is undecided."""
    found = list(outcomes)
    return True if True in found else None if None in found else False


def decide(words: Sequence[str]) -> bool | None:
    """Outcome of the words of a test, joined by ``&&`` and ``||``; None when it needs a run."""
    return any_of(all_of(_negatable(test) for test in _cut(group, "&&")) for group in _cut(words, "||"))


def _cut(words: Sequence[str], separator: str) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word == separator:
            groups.append([])
        else:
            groups[-1].append(word)
    return groups


def _negatable(words: Sequence[str]) -> bool | None:
    if words[:1] != ["!"]:
        return _compare(words)
    outcome = _compare(words[1:])
    return None if outcome is None else not outcome


def _compare(words: Sequence[str]) -> bool | None:
    match words:
        case ["-n", text]:
            return text != ""
        case ["-z", text]:
            return text == ""
        case [text] if not text.startswith("-"):
            return text != ""
        case [left, relation, right]:
            return _relation(left, relation, right)
        case _:
            return None


def _relation(left: str, relation: str, right: str) -> bool | None:
    if relation in ("=", "==", "!=") and not set("*?[") & set(right):
        return (left == right) == (relation != "!=")
    if not (relation in _ORDER and re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
        return None
    return _ORDER[relation](int(left), int(right))
