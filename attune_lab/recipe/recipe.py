"""The recipe as a value: immutable, hashed over everything that makes the run what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A setting's value; None means the setting is not given and the stack's default holds."""


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(sorted(mapping.items())))


@dataclass(frozen=True)
class Recipe:
    """Everything needed to start a training run, as settings of the registry.

    Attributes:
        stack: ``megatron-lm``.
        settings: registry key -> value, only what the recipe states; defaults are not filled in.
        environment: environment variables the recipe sets.
        carried: flags outside the registry, as written (flag -> text), kept verbatim.
        versions: library and container versions the recipe names.
    """

    stack: str
    settings: Mapping[str, Value]
    environment: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("settings", "environment", "carried", "versions"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))

    def __hash__(self) -> int:
        """Of what `==` compares, so that equal recipes have equal hashes; `digest` tells 1 from 1.0 besides."""
        parts = (self.settings, self.environment, self.carried, self.versions)
        return hash((self.stack, *(frozenset(part.items()) for part in parts)))

    def get(self, key: str) -> Value:
        """The stated value of ``key``, or the stack's default.

        Raises:
            KeyError: ``key`` is not in the registry.
        """
        from attune_lab.recipe.registry import registry

        setting = registry()[key]
        value = self.settings.get(key)
        return setting.default if value is None else value

    def with_settings(self, edits: Mapping[str, Value]) -> Recipe:
        """A new recipe with ``edits`` applied; a value of None removes the setting (back to the default)."""
        if not edits:
            return self
        merged = {**self.settings, **edits}
        return replace(self, settings={k: v for k, v in merged.items() if v is not None})

    def with_environment(self, edits: Mapping[str, str | None]) -> Recipe:
        """A new recipe with environment variables set, or removed where the value is None."""
        if not edits:
            return self
        merged = {**self.environment, **edits}
        return replace(self, environment={k: v for k, v in merged.items() if v is not None})

    def flat(self) -> dict[str, Value]:
        """Stated settings, and environment variables as ``env.NAME``."""
        return {**self.settings, **{f"env.{name}": value for name, value in self.environment.items()}}

    def changes_to(self, other: Recipe) -> dict[str, tuple[Value, Value]]:
        """What `flat` says here and there, where the two differ; None where one is silent."""
        before, after = self.flat(), other.flat()
        names = sorted({*before, *after})
        return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}

    def canonical(self) -> dict[str, Any]:
        """Plain JSON-ready form; the input of `digest` and the form in the store."""
        return {
            "stack": self.stack,
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings.items()},
            "environment": dict(self.environment),
            "carried": dict(self.carried),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_canonical(cls, data: Mapping[str, Any]) -> Recipe:
        """Inverse of `canonical`."""
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in data["settings"].items()}
        return cls(data["stack"], settings, data["environment"], data["carried"], data["versions"])

    @cached_property
    def digest(self) -> str:
        """SHA-256 over canonical JSON, 64 hex digits."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
