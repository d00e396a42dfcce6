"""Settings and changes of them as a person reads them, the same wherever they are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def value_in_words(value: Any) -> str:
    """``default``, ``on``, ``off``, ``layernorm+moe`` or the value as it is."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return str(value)


def change_in_words(changed: Mapping[str, Sequence[Any]]) -> str:
    """``tp 4 -> 2, delay_wgrad off -> on``; ``changed`` maps a setting to its value before and after."""
    pairs = ((key, *map(value_in_words, pair)) for key, pair in changed.items())
    return ", ".join(f"{key} {before} -> {after}" for key, before, after in pairs)
