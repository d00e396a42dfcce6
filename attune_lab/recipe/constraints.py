"""Whether a recipe can start on a cluster: the stack's own rules, checked before anything is spent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ruamel.yaml import YAML

from attune_lab.contracts import UserError
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import Expression, any_of, compile_expression
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.registry import registry
from simulator.hardware import ClusterSpec

Severity = Literal["error", "auto_fix", "warning"]

_WRITTEN_AS = {
    "vstages_per_rank": "vpp",
    "sequence_parallel_stated": "sequence_parallel",
    "cp_comm_types": "cp_comm_type",
}
"""Effective variables that stand for a setting under another name."""

_VERSIONS = ("mcore", "te_version", "torch_version")


@dataclass(frozen=True)
class Constraint:
    """One rule of the stack.

    Attributes:
        id: short name, e.g. ``L01``.
        severity: ``error`` refuses to start, ``auto_fix`` is repaired by the stack, ``warning`` runs badly.
        statement: the rule in one sentence.
        violated: true over the effective settings when the rule is broken.
        fix: what to do.
        flags: the flags the rule is about.
        example: effective values that break it.
        source: file and line in the stack.
    """

    id: str
    severity: Severity
    statement: str
    violated: Expression
    fix: str
    flags: tuple[str, ...]
    example: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class Finding:
    """A rule a recipe breaks; ``message`` is one sentence with the settings and their values."""

    id: str
    severity: Severity
    statement: str
    fix: str
    flags: tuple[str, ...]
    message: str


@cache
def constraints() -> tuple[Constraint, ...]:
    """All rules, in the order of the data file."""
    text = files("attune_lab").joinpath("data/constraints.yaml").read_text(encoding="utf-8")
    return tuple(
        Constraint(
            id=name,
            severity=entry["severity"],
            statement=entry["statement"],
            violated=compile_expression(entry["violated_if"]),
            fix=entry["fix"],
            flags=tuple(entry["flags"]),
            example=entry["example"],
            source=entry["source"],
        )
        for name, entry in YAML(typ="safe").load(text).items()
    )


def check(recipe: Recipe, cluster: ClusterSpec) -> list[Finding]:
    """Every rule the recipe breaks on the cluster, warnings included.

    Raises:
        UserError: the recipe lacks what the rules need, e.g. ``--num-layers``.
    """
    return violations(effective(recipe, cluster))


def errors(recipe: Recipe, cluster: ClusterSpec) -> list[Finding]:
    """The findings that keep the recipe from starting."""
    return refusals(effective(recipe, cluster))


def refusals(values: Mapping[str, Any]) -> list[Finding]:
    """The rules of severity ``error`` broken by effective settings ``values``.

    Raises:
        UserError: a rule cannot be evaluated, as where a size is 0.
    """
    return [] if can_start(values) else [finding for finding in violations(values) if finding.severity == "error"]


def violations(values: Mapping[str, Any]) -> list[Finding]:
    """The rules broken by effective settings ``values``.

    Raises:
        UserError: a rule cannot be evaluated, as where a size is 0.
    """
    return [_finding(rule, values) for rule in constraints() if _broken(rule, values)]


def breaks(rule_id: str, values: Mapping[str, Any]) -> bool:
    """Effective settings ``values`` break the rule called ``rule_id``."""
    return any(_broken(rule, values) for rule in constraints() if rule.id == rule_id)


def can_start(values: Mapping[str, Any]) -> bool:
    """No rule of severity ``error`` is broken by effective settings ``values``; the quick form of `errors`."""
    try:
        return not _refused().evaluate(values)
    except ValueError:
        return not any(_broken(rule, values) for rule in _refusals())  # says which rule it was


def _broken(rule: Constraint, values: Mapping[str, Any]) -> bool:
    try:
        return bool(rule.violated.evaluate(values))
    except ValueError as error:
        about = ", ".join(rule.flags) or rule.statement
        raise UserError(f"{about}: a value makes no sense, correct it (rule {rule.id}, {error})") from error


@cache
def _refusals() -> tuple[Constraint, ...]:
    return tuple(rule for rule in constraints() if rule.severity == "error")


@cache
def _refused() -> Expression:
    return any_of([rule.violated for rule in _refusals()])


def _finding(rule: Constraint, values: Mapping[str, Any]) -> Finding:
    named = sorted(rule.violated.names, key=rule.violated.text.find)
    facts = ", ".join(fact for fact in (_fact(name, values[name]) for name in named) if fact)
    statement, fix = rule.statement.rstrip("."), rule.fix.rstrip(".")
    message = f"{facts}: {statement}; {fix[:1].lower() if _starts_plainly(fix) else fix[:1]}{fix[1:]}."
    return Finding(rule.id, rule.severity, rule.statement, rule.fix, rule.flags, message)


def _starts_plainly(sentence: str) -> bool:
    """The first word is an ordinary capitalised word, neither an abbreviation nor a flag."""
    return re.match(r"[A-Z][a-z]*\b", sentence) is not None


def _fact(name: str, value: Any) -> str:
    """A variable as a person would write it: ``--tensor-model-parallel-size 3``, ``64 GPUs``; '' when unset."""
    if value is None or value is False or value == ():
        return ""
    if name == "world_size":
        return f"{value} GPUs"
    between = "." if name in _VERSIONS else " "
    shown = between.join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    setting = registry().get(_WRITTEN_AS.get(name, name))
    label = setting.flags[0] if setting and setting.flags else name
    return label if value is True and label.startswith("--") else f"{label} {shown}"
