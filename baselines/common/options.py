"""A tuner's options, read from its task and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attune_lab.contracts import UserError


@dataclass(frozen=True)
class Option:
    """One option: its default fixes its type (bool, int, float or str).

    Attributes:
        least, most: bounds of a number.
        choices: the texts allowed; empty for any.
    """

    default: bool | int | float | str
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()


def read_options(tuner: str, given: Mapping[str, Any], known: Mapping[str, Option] | None = None) -> dict[str, Any]:
    """The value of every known option; numbers and switches may come as text, as from a command line.

    Raises:
        UserError: an option that is not known, or a value that it cannot take.
    """
    known = known or {}
    unknown = ", ".join(sorted(given.keys() - known.keys()))
    if unknown:
        names = ", ".join(known)
        advice = f"known: {names}" if names else "it takes none, so leave it out"
        raise UserError(f"the {tuner} tuner has no option {unknown}; {advice}")
    return {name: _value(tuner, name, given.get(name, option.default), option) for name, option in known.items()}


def _value(tuner: str, name: str, value: Any, option: Option) -> Any:
    found = _typed(value, option.default)
    if found is None:
        raise UserError(f"option {name} of the {tuner} tuner is {value!r}; give {_wanted(option)}")
    allowed = found in option.choices if isinstance(found, str) else option.least <= found <= option.most
    if not allowed and (option.choices or not isinstance(found, str)):
        raise UserError(f"option {name} of the {tuner} tuner is {value!r}; give {_wanted(option)}")
    return found


def _typed(value: Any, default: bool | int | float | str) -> Any:
    """``value`` as the type of ``default``, or None where it is of another kind."""
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(str(value).lower())
    if isinstance(default, str):
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if isinstance(default, float):
        return number if math.isfinite(number) else None
    return int(number) if math.isfinite(number) and number.is_integer() else None


def _wanted(option: Option) -> str:
    if isinstance(option.default, bool):
        return "true or false"
    if isinstance(option.default, str):
        return f"one of {', '.join(option.choices)}" if option.choices else "a text"
    kind = "a number" if isinstance(option.default, float) else "a whole number"
    bounds = [f"at least {option.least:g}"] if option.least > -math.inf else []
    bounds += [f"at most {option.most:g}"] if option.most < math.inf else []
    return f"{kind} {' and '.join(bounds)}".rstrip()
