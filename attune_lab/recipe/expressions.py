"""A small, safe expression language for the conditions in data files (constraints, defects, lessons).

It is the side-effect-free part of Python's expression grammar: literals, names, boolean, comparison and
arithmetic operators, conditional expressions, tuples, sets, subscripts and a few functions. Text is parsed with
`ast` and turned into closures; nothing is ever executed as Python. Lists and tuples are one kind of value,
so that ``te_version < [2, 6]`` and ``mcore < V("0.16")`` compare whatever the reader produced.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attune_lab.recipe import layouts

Closure = Callable[[Mapping[str, Any]], Any]

MAX_LENGTH = 1000
MAX_DEPTH = 40
_MAX_DIGITS = 18
_MAX_EXPONENT = 64
_MAX_BASE = 10**6


class UnknownName(LookupError):
    """A name the expression needed has no value. ``name`` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has no value")
        self.name = name


@lru_cache(maxsize=1024, typed=True)
def version(text: str) -> tuple[int, ...]:
    """The numbers of a version for comparison: ``"0.16.1rc2+g1"`` -> ``(0, 16, 1)``.

    Raises:
        ValueError: the text does not start with a number.
    """
    numbers: list[int] = []
    for part in str(text).removeprefix("v").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits[:_MAX_DIGITS]))
        if digits != part:
            break
    if not numbers:
        raise ValueError(f"{text!r} is no version")
    return tuple(numbers)


def versions(named: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Those of ``named`` that start with a number, for comparison; others (``nightly``) say nothing to compare."""
    return {name: version(text) for name, text in named.items() if re.match(r"v?[0-9]", text)}


def _product(values: Any) -> Any:
    """The product of numbers; of anything else it could be a text of any length."""
    numbers = tuple(values)
    if not all(isinstance(number, int | float) for number in numbers):
        raise TypeError("prod takes numbers")
    return math.prod(numbers)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "bool": bool, "int": int, "len": len, "min": min, "max": max, "any": any, "all": all, "abs": abs, "set": set,
    "prod": _product, "V": version,
    "stages": layouts.stages, "stages_with": layouts.stages_with, "symbols": layouts.symbols,
    "layout_count": layouts.layout_count, "splits_evenly": layouts.splits_evenly,
}  # fmt: skip


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > _MAX_EXPONENT or abs(base) > _MAX_BASE:
        raise ValueError(f"{base} ** {exponent} is out of bounds")
    if base < 0 and exponent != int(exponent):
        raise ValueError(f"{base} ** {exponent} is no real number")
    return base**exponent


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip
_SETS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Sub: operator.sub, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A compiled expression.

    Attributes:
        text: as written.
        names: the variables it may read.
    """

    text: str
    names: frozenset[str]
    _closure: Closure

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value under ``values``; names are looked up only where evaluation gets to them.

        Raises:
            UnknownName: a name that was needed is not in ``values``.
            ValueError: the operands do not go together (type, division by zero, bounds).
        """
        try:
            return self._closure(values)
        except (TypeError, ValueError, ArithmeticError, IndexError, KeyError) as error:
            raise ValueError(f"expression {self.text!r}: {error}") from error


@lru_cache(maxsize=2048)
def compile_expression(text: str) -> Expression:
    """The `Expression` that ``text`` describes.

    Raises:
        ValueError: the text is no expression of this language; the message names it.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"expression {text[:60]!r}… is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        closure = _build(tree, 0)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"expression {text!r}: {error}") from error
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
    return Expression(text, frozenset(names), closure)


def _build(node: ast.expr, depth: int) -> Closure:
    """The closure of one node; raises ValueError for what the language does not have."""
    builder = _BUILDERS.get(type(node))
    if builder is None:
        raise ValueError(f"{type(node).__name__} is not allowed")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return builder(node, depth + 1)


def _constant(node: ast.Constant, _: int) -> Closure:
    value = node.value
    if not isinstance(value, bool | int | float | str | None):
        raise ValueError(f"the literal {value!r} is not allowed")
    return lambda _values: value


def _name(node: ast.Name, _: int) -> Closure:
    name = node.id

    def look_up(values: Mapping[str, Any]) -> Any:
        try:
            value = values[name]
        except KeyError:
            raise UnknownName(name) from None
        return tuple(value) if isinstance(value, list) else value

    return look_up


def _bool_op(node: ast.BoolOp, depth: int) -> Closure:
    parts = [_build(part, depth) for part in node.values]

    def either(values: Mapping[str, Any]) -> Any:
        value = None
        for part in parts:
            value = part(values)
            if value:
                break
        return value

    def all_of(values: Mapping[str, Any]) -> Any:
        value = None
        for part in parts:
            value = part(values)
            if not value:
                break
        return value

    return either if isinstance(node.op, ast.Or) else all_of


def _unary_op(node: ast.UnaryOp, depth: int) -> Closure:
    operand = _build(node.operand, depth)
    apply = _UNARY.get(type(node.op))
    if apply is None:
        raise ValueError(f"{type(node.op).__name__} is not allowed")
    return lambda values: apply(operand(values))


def _bin_op(node: ast.BinOp, depth: int) -> Closure:
    left, right = _build(node.left, depth), _build(node.right, depth)
    kind = type(node.op)
    on_numbers, on_sets = _ARITHMETIC.get(kind), _SETS.get(kind)
    if on_numbers is None and on_sets is None:
        raise ValueError(f"{kind.__name__} is not allowed")

    def apply(values: Mapping[str, Any]) -> Any:
        a, b = left(values), right(values)
        if on_numbers and isinstance(a, int | float) and isinstance(b, int | float):
            return on_numbers(a, b)
        if on_sets and isinstance(a, set) and isinstance(b, set):
            return on_sets(a, b)
        raise TypeError(f"{kind.__name__} of {a!r} and {b!r}")

    return apply


def _compare(node: ast.Compare, depth: int) -> Closure:
    first = _build(node.left, depth)
    rest = [(_COMPARISONS[type(op)], _build(n, depth)) for op, n in zip(node.ops, node.comparators, strict=True)]
    if len(rest) == 1:  # nearly all of them
        ((only, second),) = rest
        return lambda values: only(first(values), second(values))

    def compare(values: Mapping[str, Any]) -> Any:
        left, outcome = first(values), True
        for test, operand in rest:
            right = operand(values)
            outcome = test(left, right)
            if not outcome:
                break
            left = right
        return outcome

    return compare


def _if_exp(node: ast.IfExp, depth: int) -> Closure:
    test, body, other = (_build(part, depth) for part in (node.test, node.body, node.orelse))
    return lambda values: body(values) if test(values) else other(values)


def _sequence(node: ast.Tuple | ast.List, depth: int) -> Closure:
    items = [_build(item, depth) for item in node.elts]
    return lambda values: tuple(item(values) for item in items)


def _set(node: ast.Set, depth: int) -> Closure:
    items = [_build(item, depth) for item in node.elts]
    return lambda values: {item(values) for item in items}


def _subscript(node: ast.Subscript, depth: int) -> Closure:
    container, index = _build(node.value, depth), _build(node.slice, depth)
    return lambda values: container(values)[index(values)]


def _call(node: ast.Call, depth: int) -> Closure:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
        raise ValueError(f"the call {ast.unparse(node.func)!r} is not allowed; known: {', '.join(FUNCTIONS)}")
    function = FUNCTIONS[node.func.id]
    arguments = [_build(argument, depth) for argument in node.args]
    return lambda values: function(*(argument(values) for argument in arguments))


_BUILDERS: Mapping[type[ast.expr], Callable[[Any, int], Closure]] = {
    ast.Constant: _constant, ast.Name: _name, ast.BoolOp: _bool_op, ast.UnaryOp: _unary_op, ast.BinOp: _bin_op,
    ast.Compare: _compare, ast.IfExp: _if_exp, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _set,
    ast.Subscript: _subscript, ast.Call: _call,
}  # fmt: skip
