"""Known defects of training stacks: which are active under the facts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from attune_lab.gate.facts import LIBRARIES
from attune_lab.gate.verdict import Check, Outcome
from attune_lab.recipe.expressions import Expression, UnknownName, compile_expression

ANY_STACK = "any"

Active: TypeAlias = "tuple[list[Defect], list[tuple[Defect, str]]]"
"""Defects that are active, and those left open with the name of the fact that is not known."""


@dataclass(frozen=True)
class Defect:
    """One entry of ``data/defects.yaml``; its header explains the fields."""

    id: str
    title: str
    mechanism: str
    when: Expression
    outcome: Literal["reject", "inconclusive"]
    source: str
    stack: tuple[str, ...] = ("megatron_lm",)
    effect: Mapping[str, float] = field(default_factory=dict)

    def concerns(self, values: Mapping[str, Any]) -> bool:
        """Whether the defect is one of the stack that the facts name."""
        return ANY_STACK in self.stack or values["stack"] in self.stack


@cache
def defects() -> tuple[Defect, ...]:
    """All known defects, in the order of the table."""
    from ruamel.yaml import YAML

    text = files("attune_lab").joinpath("data/defects.yaml").read_text(encoding="utf-8")
    table = YAML(typ="safe").load(text)
    return tuple(_defect(id_, entry) for id_, entry in table.items())


def _defect(id_: str, entry: Mapping[str, Any]) -> Defect:
    stack = {"stack": tuple(entry["stack"])} if "stack" in entry else {}
    return Defect(id=id_, **{**entry, **stack, "when": compile_expression(entry["when"])})


def active(values: Mapping[str, Any]) -> Active:
    """The defects active under ``values``, and those left open because a fact is unknown, with its name.

    Args:
        values: as `attune_lab.gate.facts` gives them.
    """
    found, unknown = [], []
    for defect in defects():
        try:
            if defect.concerns(values) and defect.when.evaluate(values):
                found.append(defect)
        except UnknownName as error:
            unknown.append((defect, error.name))
    return found, unknown


def introduced(before: Active, after: Active, *, versions_follow: bool = False) -> Iterator[Check]:
    """A check per known defect that two runs touch: what the candidate brings in counts, the rest is noted.

    Args:
        before, after: what is active in baseline and candidate.
        versions_follow: a run will report the versions, so a defect that hangs on an unknown one is not asked about.
    """
    (inherited, doubtful), (found, unknown) = before, after
    for defect in inherited:
        if defect not in found:
            reason = f"{defect.title} ({defect.source}): the candidate leaves this defect of the baseline behind."
            yield Check(f"configuration.{defect.id}", "pass", reason)
    for defect in found:
        old = defect in inherited
        outcome: Outcome = "pass" if old else defect.outcome
        advice = "the baseline has it too" if old else "avoid this combination or upgrade"
        yield Check(f"configuration.{defect.id}", outcome, f"{defect.title} ({defect.source}): {advice}.")
    for defect, name in unknown:
        if not versions_follow and all(defect is not other for other, _ in doubtful):
            advice = (
                f"name its version in both recipes, as # stack: {name}=1.2"
                if name in LIBRARIES
                else "find out before this is shipped"
            )
            reason = f"{defect.title} ({defect.source}) depends on {name}, which is not known: {advice}."
            yield Check(f"configuration.{defect.id}", "inconclusive", reason)
