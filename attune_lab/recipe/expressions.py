"""A small, safe expression language for the conditions in data files (constraints, defects, lessons).

It is the side-effect-free part of Python's expression grammar: literals, names, boolean, comparison and
arithmetic operators, conditional expressions, tuples, sets, subscripts and a few functions. Text is parsed with
`ast`; every node is checked and written anew, and only what was written here is compiled: names are looked up among
the values given, arithmetic is bounded, functions are those of `FUNCTIONS`, and nothing else can be reached. Lists
and tuples are one kind of value, so that ``te_version < [2, 6]`` and ``mcore < V("0.16")`` compare whatever the
reader produced.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from attune_lab.recipe import layouts

Compiled = Callable[[Mapping[str, Any]], Any]

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


def _binary(kind: type[ast.operator]) -> Callable[[Any, Any], Any]:
    """An operator on two numbers or two sets; of other operands it could make a value of any size."""
    on_numbers, on_sets = _ARITHMETIC.get(kind), _SETS.get(kind)

    def apply(a: Any, b: Any) -> Any:
        if on_numbers and isinstance(a, int | float) and isinstance(b, int | float):
            return on_numbers(a, b)
        if on_sets and isinstance(a, set) and isinstance(b, set):
            return on_sets(a, b)
        raise TypeError(f"{kind.__name__} of {a!r} and {b!r}")

    return apply


_OPERATORS = {f"_{kind.__name__}": _binary(kind) for kind in (*_ARITHMETIC, *_SETS)}
_GLOBALS: Mapping[str, Any] = {"__builtins__": {}, "_list": list, "_tuple": tuple, **FUNCTIONS, **_OPERATORS}
"""All that compiled text can reach beside the values it is given."""


@dataclass(frozen=True)
class Expression:
    """A compiled expression.

    Attributes:
        text: as written.
        names: the variables it may read.
    """

    text: str
    names: frozenset[str]
    _compiled: Compiled

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value under ``values``; names are looked up only where evaluation gets to them.

        Raises:
            UnknownName: a name that was needed is not in ``values``.
            ValueError: the operands do not go together (type, division by zero, bounds).
        """
        try:
            return self._compiled(values)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            missing = error.args[0] if isinstance(error, KeyError) else None
            if missing in self.names and missing not in values:
                raise UnknownName(missing) from None
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
        compiled = _compile(_rewritten(tree, 0))
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"expression {text!r}: {error}") from error
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
    return Expression(text, frozenset(names), compiled)


def any_of(expressions: Sequence[Expression]) -> Expression:
    """One expression that is true where at least one of them is: asked of many values, it is several times as fast."""
    bodies = [_rewritten(ast.parse(expression.text.strip(), mode="eval").body, 0) for expression in expressions]
    names = frozenset(name for expression in expressions for name in expression.names)
    no = _ours("False")  # an `or` needs two sides
    either = ast.copy_location(ast.BoolOp(ast.Or(), [no, *bodies]), no)
    return Expression(" or ".join(f"({expression.text})" for expression in expressions), names, _compile(either))


def _compile(body: ast.expr) -> Compiled:
    """A function of the values, of a body that `_rewritten` wrote."""
    function: Any = ast.parse("lambda _values: None", mode="eval")
    function.body.body = body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `x is 1` and the like mean here what they say
        outer = compile(function, "<condition>", "eval")
    (code,) = (constant for constant in outer.co_consts if isinstance(constant, CodeType))
    return FunctionType(code, dict(_GLOBALS))


def _rewritten(node: ast.expr, depth: int) -> ast.expr:
    """The node made anew from what the language has; raises ValueError for anything else."""
    rewrite = _REWRITERS.get(type(node))
    if rewrite is None:
        raise ValueError(f"{type(node).__name__} is not allowed")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return ast.copy_location(rewrite(node, depth + 1), node)


def _all(nodes: Sequence[ast.expr], depth: int) -> list[ast.expr]:
    return [_rewritten(node, depth) for node in nodes]


@lru_cache(maxsize=1024)
def _ours(text: str) -> ast.expr:
    """The node of a piece of Python that is written here."""
    return ast.parse(text, mode="eval").body


def _constant(node: ast.Constant, _: int) -> ast.expr:
    if not isinstance(node.value, bool | int | float | str | None):
        raise ValueError(f"the literal {node.value!r} is not allowed")
    return ast.Constant(node.value)


def _name(node: ast.Name, _: int) -> ast.expr:
    """The value of that name, a list as a tuple."""
    return _ours(f"_tuple(_v) if (_v := _values[{node.id!r}]).__class__ is _list else _v")


def _bool_op(node: ast.BoolOp, depth: int) -> ast.expr:
    return ast.BoolOp(node.op, _all(node.values, depth))


def _unary_op(node: ast.UnaryOp, depth: int) -> ast.expr:
    if not isinstance(node.op, ast.Not | ast.USub | ast.UAdd):
        raise ValueError(f"{type(node.op).__name__} is not allowed")
    return ast.UnaryOp(node.op, _rewritten(node.operand, depth))


def _bin_op(node: ast.BinOp, depth: int) -> ast.expr:
    name = f"_{type(node.op).__name__}"
    if name not in _OPERATORS:
        raise ValueError(f"{type(node.op).__name__} is not allowed")
    return ast.Call(_ours(name), _all((node.left, node.right), depth), [])


def _compare(node: ast.Compare, depth: int) -> ast.expr:
    return ast.Compare(_rewritten(node.left, depth), node.ops, _all(node.comparators, depth))


def _if_exp(node: ast.IfExp, depth: int) -> ast.expr:
    return ast.IfExp(*_all((node.test, node.body, node.orelse), depth))


def _sequence(node: ast.Tuple | ast.List, depth: int) -> ast.expr:
    return ast.Tuple(_all(node.elts, depth), ast.Load())


def _set(node: ast.Set, depth: int) -> ast.expr:
    return ast.Set(_all(node.elts, depth))


def _subscript(node: ast.Subscript, depth: int) -> ast.expr:
    return ast.Subscript(_rewritten(node.value, depth), _rewritten(node.slice, depth), ast.Load())


def _call(node: ast.Call, depth: int) -> ast.expr:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
        raise ValueError(f"the call {ast.unparse(node.func)!r} is not allowed; known: {', '.join(FUNCTIONS)}")
    return ast.Call(_ours(node.func.id), _all(node.args, depth), [])


_REWRITERS: Mapping[type[ast.expr], Callable[[Any, int], ast.expr]] = {
    ast.Constant: _constant, ast.Name: _name, ast.BoolOp: _bool_op, ast.UnaryOp: _unary_op, ast.BinOp: _bin_op,
    ast.Compare: _compare, ast.IfExp: _if_exp, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _set,
    ast.Subscript: _subscript, ast.Call: _call,
}  # fmt: skip
