"""Integer arithmetic of shell expressions, over known values only."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:(\d{1,15})|\$?\{?([A-Za-z_]\w*)\}?|([-+*/%()]))\s*")
_LOOSEST, _TIGHTEST = frozenset("+-"), frozenset("*/%")
_MAX_TOKENS = 200


def evaluate(expression: str, number: Callable[[str], int | None]) -> int | None:
    """Value of an expression of integers, variables, + - * / % and brackets; None when it needs a run.

    Division truncates towards zero as in Bash.
    """
    tokens: list[str] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if not match or len(tokens) > _MAX_TOKENS:
            return None
        position = match.end()
        value = number(match[2]) if match[2] else None
        if match[2] and value is None:
            return None
        tokens.append(match[1] or match[3] or str(value))
    result, rest = _sum(tokens)
    return result if not rest else None


def _sum(tokens: list[str]) -> tuple[int | None, list[str]]:
    left, tokens = _product(tokens)
    while left is not None and tokens and tokens[0] in _LOOSEST:
        right, rest = _product(tokens[1:])
        if right is None:
            return None, rest
        left, tokens = (left + right if tokens[0] == "+" else left - right), rest
    return left, tokens


def _product(tokens: list[str]) -> tuple[int | None, list[str]]:
    left, tokens = _atom(tokens)
    while left is not None and tokens and tokens[0] in _TIGHTEST:
        right, rest = _atom(tokens[1:])
        if right is None or (tokens[0] in "/%" and right == 0):
            return None, rest
        quotient = abs(left) // abs(right) if right else 0
        signed = quotient if (left < 0) == (right < 0) else -quotient
        left, tokens = {"*": left * right, "/": signed, "%": left - signed * right}[tokens[0]], rest
    return left, tokens


def _atom(tokens: list[str]) -> tuple[int | None, list[str]]:
    if not tokens:
        return None, []
    head, rest = tokens[0], tokens[1:]
    if head in ("-", "+"):
        value, rest = _atom(rest)
        return (-value if head == "-" and value is not None else value), rest
    if head == "(":
        value, rest = _sum(rest)
        return (value, rest[1:]) if rest[:1] == [")"] else (None, rest)
    return (int(head), rest) if re.fullmatch(r"-?\d+", head) else (None, rest)
