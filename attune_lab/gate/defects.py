"""Known defects of the stack: which are active in a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from attune_lab.recipe import expressions
from attune_lab.recipe.expressions import Expression, UnknownName, compile_expression

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec

STACK_VERSIONS = ("mcore", "te", "torch", "nccl")


@dataclass(frozen=True)
class Defect:
    """One entry of ``data/defects.yaml``; its header explains the fields."""

    id: str
    title: str
    mechanism: str
    when: Expression
    outcome: Literal["reject", "inconclusive"]
    effect: Mapping[str, float]
    source: str


@cache
def defects() -> tuple[Defect, ...]:
    """All known defects, in the order of the table."""
    from ruamel.yaml import YAML

    text = files("attune_lab").joinpath("data/defects.yaml").read_text(encoding="utf-8")
    table = YAML(typ="safe").load(text)
    return tuple(Defect(id=id_, **{**entry, "when": compile_expression(entry["when"])}) for id_, entry in table.items())


def facts(recipe: Recipe, cluster: ClusterSpec, versions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a predicate may ask: effective settings, ``env_NAME`` for every variable, and the stack's versions.

    Args:
        versions: what a run reported; they count before those the recipe names. A library nobody names is absent.
    """
    from attune_lab.recipe.effective import effective
    from attune_lab.recipe.registry import registry

    known = expressions.versions({**recipe.versions, **(versions or {})})
    values: dict[str, Any] = {key: recipe.get(key) for key in registry()}
    values.update(effective(recipe, cluster))
    values["env_TORCH_NCCL_AVOID_RECORD_STREAMS"] = None
    values.update({f"env_{name}": value for name, value in recipe.environment.items()})
    for name in STACK_VERSIONS:
        values.pop(name, None)
        if name in known:
            values[name] = known[name]
    return values


def active(values: Mapping[str, Any]) -> tuple[list[Defect], list[tuple[Defect, str]]]:
    """The defects active under ``values``, and those left open because a fact is unknown, with its name."""
    found, unknown = [], []
    for defect in defects():
        try:
            if defect.when.evaluate(values):
                found.append(defect)
        except UnknownName as error:
            unknown.append((defect, error.name))
    return found, unknown
