"""The schema check agrees with JSON Schema where it goes, and refuses to go further."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.llm.schema import problems

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
KINDS = ["object", "array", "string", "boolean", "integer", "number", "null"]


@pytest.mark.parametrize(
    ("value", "schema", "why"),
    [
        (1, {"type": "string"}, "the reply is not of type string"),
        (True, {"type": "integer"}, "not of type integer"),
        (1, {"enum": [True]}, "none of True"),
        ({}, {"type": "object", "required": ["a"]}, "the reply lacks a"),
        ({"b": 1}, {"additionalProperties": False}, "has b, which is not asked for"),
        ({"b": 1}, {"additionalProperties": {"type": "string"}}, "the reply.b is not of type string"),
        ({"a": [1, "x"]}, {"properties": {"a": {"items": {"type": "integer"}}}}, r"the reply.a\[1\] is not of type"),
        ([1, 2], {"maxItems": 1}, "2 items, more than 1"),
        ("ab", {"minLength": 3}, "2 characters, fewer than 3"),
        (5, {"maximum": 4}, "5, more than 4"),
    ],
)
def test_says_where_and_what(value, schema, why):
    import re

    [found] = problems(value, schema)
    assert re.search(why, found)


@given(VALUES, st.sampled_from(KINDS))
def test_types_are_jsons(value, kind):
    mine = not problems(value, {"type": kind})
    theirs = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": value is True or value is False,
        "null": value is None,
        "number": type(value) in (int, float),
        "integer": type(value) is int or (type(value) is float and value == int(value)),
    }
    assert mine == theirs[kind]


@given(VALUES)
def test_an_empty_schema_takes_anything(value):
    assert problems(value, {}) == []


def test_a_keyword_that_is_not_checked_is_refused():
    with pytest.raises(ValueError, match="pattern"):
        problems("x", {"pattern": "y"})
