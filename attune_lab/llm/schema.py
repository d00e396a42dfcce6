"""Checking a reply against its JSON schema, in the few keywords that replies here need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYWORDS = frozenset(
    {
        "type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength",
        "maxLength", "minimum", "maximum", "description",
    }
)  # fmt: skip
"""What a schema may say; anything else would be sent to a model and never checked."""

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def problems(value: Any, schema: Mapping[str, Any], where: str = "the reply") -> list[str]:
    """Why ``value`` (as read from JSON) does not fit ``schema``, one clause each; empty when it fits.

    Raises:
        ValueError: the schema has a keyword that is not checked.

    **Source:** meaning of the keywords from JSON Schema 2020-12, Validation.
    """
    if unknown := schema.keys() - KEYWORDS:
        raise ValueError(f"schema keywords that are not checked: {', '.join(sorted(unknown))}")
    if "type" in schema and not _is_of(value, schema["type"]):
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return [f"{where} is not of type {' or '.join(kinds)}"]
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return [f"{where} is none of {', '.join(map(repr, schema['enum']))}"]
    found = _size_problems(value, schema, where)
    if isinstance(value, Mapping):
        found += _object_problems(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            found += problems(item, schema["items"], f"{where}[{place}]")
    return found


def _is_of(value: Any, kinds: str | list[str]) -> bool:
    """Whether JSON calls ``value`` one of ``kinds``; a switch is no number there, and 2.0 is an integer."""
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if isinstance(value, bool) and kind != "boolean":
            continue
        if isinstance(value, _KINDS[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer()):
            return True
    return False


def _same(value: Any, choice: Any) -> bool:
    """Equality as JSON has it: true is not 1."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _size_problems(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    found = []
    for least, most, kind, unit in (
        ("minLength", "maxLength", str, " characters"),
        ("minItems", "maxItems", list, " items"),
        ("minimum", "maximum", (int, float), ""),
    ):
        if not isinstance(value, kind) or isinstance(value, bool):
            continue
        size = value if isinstance(value, int | float) else len(value)
        if least in schema and not size >= schema[least]:
            found.append(f"{where} has {size}{unit}, fewer than {schema[least]}")
        if most in schema and not size <= schema[most]:
            found.append(f"{where} has {size}{unit}, more than {schema[most]}")
    return found


def _object_problems(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> list[str]:
    known: Mapping[str, Any] = schema.get("properties", {})
    found = [f"{where} lacks {key}" for key in schema.get("required", []) if key not in value]
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in known:
            found += problems(item, known[key], f"{where}.{key}")
        elif others is False:
            found.append(f"{where} has {key}, which is not asked for")
        elif isinstance(others, Mapping):
            found += problems(item, others, f"{where}.{key}")
    return found
