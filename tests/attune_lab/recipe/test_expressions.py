"""The expression language agrees with Python where both exist, and refuses the rest."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.recipe.expressions import FUNCTIONS, UnknownName, any_of, compile_expression, version

NAMES = {"tp": 2, "pp": 4, "ep": 8, "frac": 0.25, "on": True, "off": False, "unset": None}


def evaluate(text: str, **values: Any) -> Any:
    return compile_expression(text).evaluate(values)


def numbers() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["tp", "pp", "ep", "frac", "3", "0", "2.5", "-7"])

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
        call = st.tuples(st.sampled_from(["min", "max"]), inner, inner)
        return (
            binary.map(lambda p: f"({p[0]} {p[1]} {p[2]})")
            | call.map(lambda p: f"{p[0]}({p[1]}, {p[2]})")
            | inner.map(lambda n: f"abs({n})")
        )

    return st.recursive(leaf, grow, max_leaves=6)


def conditions() -> st.SearchStrategy[str]:
    compared = st.tuples(numbers(), st.sampled_from(["<", "<=", "==", "!=", ">"]), numbers(), numbers())
    leaf = (
        compared.map(lambda p: f"({p[0]} {p[1]} {p[2]} < {p[3]})")
        | numbers().map(lambda n: f"({n} in (2, 4, {n}))")
        | st.sampled_from(["on", "off", "unset is None", "unset is not None", "bool({2, 4} & {4, 8})"])
    )

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.tuples(inner, st.sampled_from(["and", "or"]), inner)
        choice = st.tuples(inner, inner, numbers())
        return (
            pair.map(lambda p: f"({p[0]} {p[1]} {p[2]})")
            | inner.map(lambda c: f"(not {c})")
            | choice.map(lambda p: f"({p[0]} if {p[1]} else {p[2]})")
        )

    return st.recursive(leaf, grow, max_leaves=5)


@given(conditions() | numbers())
def test_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}, "min": min, "max": max, "abs": abs, "bool": bool}, NAMES)
    except ArithmeticError:
        with pytest.raises(ValueError, match="expression"):
            compile_expression(text).evaluate(NAMES)
        return
    value = compile_expression(text).evaluate(NAMES)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "tp.real",
        "lambda: 1",
        "[x for x in (1, 2)]",
        "(x := 1)",
        "open('f')",
        "f'{tp}'",
        "max(tp, key=tp)",
        "1 +",
        "",
        "tp; pp",
        "b'bytes'",
        "~tp",
        "tp << 4",
        "tp @ pp",
        "(1, 2)[0:1]",
        "(" * 80 + "1" + ")" * 80 + "\0",
        "not " * 60 + "on",
        "1+" * 600 + "1",
    ],
)
def test_refuses_what_the_language_lacks(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        compile_expression(text)


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "2**1000", "'x' * 10**9", "(1,) * 10**9", "1/0", "(1, 2)[5]", "None < 1", "'%999d' % 1",
     "prod((10**9, 'x'))", "prod((10**9, (1,)))", "(-8) ** 0.5", "0.0 ** -1", "stages('t*9999|t*9999')", "int(1e999)",
     "9" * 999 + "/3.0"],
)  # fmt: skip
def test_bounds_and_type_errors_name_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        evaluate(text)


def test_unknown_names_are_their_own_outcome() -> None:
    expression = compile_expression("on or missing > 1")
    assert expression.names == {"on", "missing"}
    assert expression.evaluate({"on": True}) is True
    with pytest.raises(UnknownName) as caught:
        expression.evaluate({"on": False})
    assert caught.value.name == "missing"


def test_lists_compare_as_tuples() -> None:
    assert evaluate("te_version < [2, 6]", te_version=[2, 5])
    assert evaluate('mcore < V("0.16")', mcore=(0, 15, 3))
    assert not evaluate("te_version < (2, 6)", te_version=(2, 6, 1))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.16.1rc2", (0, 16, 1)), ("2.9.0+cu128", (2, 9, 0)), ("v1.17.3", (1, 17, 3)), ("26.04", (26, 4))],
)
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


TOKENS = st.sampled_from(
    [*FUNCTIONS, "tp", "missing", "(", ")", ",", "[", "]", "{", "}", "not ", " and ", " or ", " if ", " else ", " in ",
     " is ", "<", ">=", "==", "**", "*", "+", "-", "/", "%", "//", "|", "9" * 40, "1e308", "0", "-1", "'t*9|'", "None"]
)  # fmt: skip


@given(st.lists(TOKENS, max_size=25).map("".join))
def test_no_text_does_more_than_say_that_it_is_none(text: str) -> None:
    """Nothing but the two errors of the language gets out, and nothing hangs."""
    with suppress(UnknownName, ValueError):
        compile_expression(text).evaluate({"tp": (2, "x")})


@given(st.lists(conditions(), min_size=1, max_size=4))
def test_any_of_is_what_its_parts_are(texts: list[str]) -> None:
    parts = [compile_expression(text) for text in texts]
    try:
        expected = any(part.evaluate(NAMES) for part in parts)
    except ValueError:
        with pytest.raises(ValueError, match="expression"):
            any_of(parts).evaluate(NAMES)
        return
    assert bool(any_of(parts).evaluate(NAMES)) is expected
    assert any_of(parts).names == set().union(*(part.names for part in parts))
