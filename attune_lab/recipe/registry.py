"""The registry of settings: one vocabulary for recipes, constraints, lessons, defects and the search space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ruamel.yaml import YAML

from attune_lab.recipe.recipe import Value

Kind: TypeAlias = Literal["int", "float", "bool", "str", "enum", "list"]
Arity: TypeAlias = Literal["value", "words", "constant"]
Direction: TypeAlias = Literal["free", "fixed", "forbidden", "needs_approval", "towards_fp32"]
SettingClass: TypeAlias = Literal["performance-only", "numerics-changing", "objective-changing", "unsafe-by-version"]


@dataclass(frozen=True)
class Spelling:
    """One command-line flag of a setting.

    Attributes:
        flag: with its dashes.
        arity: ``value`` takes one argument, ``words`` takes several, ``constant`` takes none and sets `constant`.
        constant: what a flag without argument sets.
        deprecated: read, never written.
    """

    flag: str
    arity: Arity
    constant: Value = None
    deprecated: bool = False


@dataclass(frozen=True)
class Setting:
    """One setting of a stack.

    Attributes:
        key: the project's name for it.
        kind: type of the value; a ``list`` value is a tuple of strings.
        default: the stack's value when nothing is stated; None for unset.
        spellings: flags of Megatron-LM, the one we write first.
        group: the part of a launch script it belongs to (``layout``, ``moe``, ...).
        cls: what changing it can do to training.
        direction: which changes are allowed; with ``towards_fp32``, raising the precision (true, larger, a wider
            type) is free and lowering it needs approval.
        why, allowed: the same for a person, with the conditions.
        choices: legal values of an ``enum``, legal items of a ``list``; empty for any.
    """

    key: str
    kind: Kind
    default: Value
    spellings: tuple[Spelling, ...]
    group: str
    cls: SettingClass
    direction: Direction
    why: str
    allowed: str
    choices: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags of the setting, deprecated ones last."""
        return tuple(s.flag for s in self.spellings)

    @property
    def lever(self) -> bool:
        """A tuner may move the setting without asking anyone."""
        return self.direction in ("free", "towards_fp32")


@cache
def registry() -> Mapping[str, Setting]:
    """All settings by key, in the order of a launch script."""
    text = files("attune_lab").joinpath("data/settings.yaml").read_text(encoding="utf-8")
    entries = YAML(typ="safe").load(text)
    return MappingProxyType({key: _setting(key, entry) for key, entry in entries.items()})


def setting_of_flag(flag: str) -> Setting | None:
    """The setting that ``flag`` belongs to, None for a flag outside the registry."""
    found = _by_flag().get(flag)
    return found[0] if found else None


def spelling_of_flag(flag: str) -> Spelling | None:
    """How ``flag`` is to be read, None for a flag outside the registry."""
    found = _by_flag().get(flag)
    return found[1] if found else None


@cache
def _by_flag() -> Mapping[str, tuple[Setting, Spelling]]:
    return {spelling.flag: (setting, spelling) for setting in registry().values() for spelling in setting.spellings}


def _setting(key: str, entry: Mapping[str, Any]) -> Setting:
    default = entry["default"]
    return Setting(
        key=key,
        kind=entry["kind"],
        default=tuple(default) if isinstance(default, list) else default,
        spellings=(
            *(_spelling(flag, meaning) for flag, meaning in entry["flags"].items()),
            *(_spelling(flag, meaning, deprecated=True) for flag, meaning in entry.get("deprecated", {}).items()),
        ),
        group=entry["group"],
        cls=entry["class"],
        direction=entry["direction"],
        why=entry["why"],
        allowed=entry["allowed"],
        choices=tuple(entry.get("choices", ())),
    )


def _spelling(flag: str, meaning: Value, *, deprecated: bool = False) -> Spelling:
    if meaning in ("value", "words"):
        return Spelling(flag, "value" if meaning == "value" else "words", None, deprecated)
    return Spelling(flag, "constant", meaning, deprecated)
