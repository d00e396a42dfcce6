"""Integer arithmetic of shell expressions, over known values only."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\s*(?:(\d{1,15})|\$?\{?([A-Za-z_]\w*)\}?|(&&|\|\||[<>=!]=|[-+*/%()<>!?:]))\s*")
_MAX_TOKENS = 200
_MAX_VALUE = 10**18


def _quotient(left: int, right: int) -> int:
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


_BINARY: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "==": (3, lambda a, b: int(a == b)),
    "!=": (3, lambda a, b: int(a != b)),
    "<": (4, lambda a, b: int(a < b)),
    "<=": (4, lambda a, b: int(a <= b)),
    ">": (4, lambda a, b: int(a > b)),
    ">=": (4, lambda a, b: int(a >= b)),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, _quotient),
    "%": (6, lambda a, b: a - b * _quotient(a, b)),
}
_UNARY: Mapping[str, Callable[[int], int]] = {"-": operator.neg, "+": int, "!": lambda a: int(not a)}


class _Unknown(Exception):
    """The value needs a run, or the text is no expression."""


def evaluate(expression: str, number: Callable[[str], int | None]) -> int | None:
    """Value of an expression of integers and variables; None when it needs a run.

    Operators: + - * / %, comparisons, && || !, the conditional ``a ? b : c`` and brackets. Division truncates towards
    zero, comparisons give 1 or 0, as in Bash.
    """
    try:
        tokens = _tokens(expression, number)
        value = _conditional(tokens)
    except (_Unknown, RecursionError):
        return None
    return None if tokens else value


def _tokens(expression: str, number: Callable[[str], int | None]) -> list[str | int]:
    """The tokens last to first, so that the next one is popped."""
    tokens: list[str | int] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if not match or len(tokens) > _MAX_TOKENS:
            raise _Unknown
        position = match.end()
        value = number(match[2]) if match[2] else int(match[1]) if match[1] else match[3]
        if value is None:
            raise _Unknown
        tokens.append(value)
    return tokens[::-1]


def _conditional(tokens: list[str | int]) -> int:
    test = _binary(tokens, 1)
    if not tokens or tokens[-1] != "?":
        return test
    tokens.pop()
    yes = _conditional(tokens)
    if not tokens or tokens.pop() != ":":
        raise _Unknown
    no = _conditional(tokens)
    return yes if test else no


def _binary(tokens: list[str | int], tightness: int) -> int:
    left = _unary(tokens)
    while tokens and isinstance(symbol := tokens[-1], str) and symbol in _BINARY and _BINARY[symbol][0] >= tightness:
        tokens.pop()
        level, act = _BINARY[symbol]
        right = _binary(tokens, level + 1)
        if symbol in "/%" and right == 0:
            raise _Unknown
        left = act(left, right)
        if abs(left) > _MAX_VALUE:
            raise _Unknown
    return left


def _unary(tokens: list[str | int]) -> int:
    head = tokens.pop() if tokens else ""
    if isinstance(head, int):
        return head
    if head in _UNARY:
        return _UNARY[head](_unary(tokens))
    if head != "(":
        raise _Unknown
    value = _conditional(tokens)
    if not tokens or tokens.pop() != ")":
        raise _Unknown
    return value
