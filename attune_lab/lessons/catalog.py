"""The catalog of lessons: symptom -> lever -> expected effect -> risk -> retry rule, with its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from attune_lab.contracts import UserError
from attune_lab.recipe.expressions import UnknownName, compile_expression

VERBS = frozenset({"halve", "double", "up", "down", "on", "off", "best", "any"})
"""How a move changes a parameter; any other value is taken as the new value itself."""

Step = bool | int | float | str


class Lesson(BaseModel):
    """One entry of the catalog. A lesson without moves is advice: listed, never acted on.

    Attributes:
        symptoms: any of them makes the lesson relevant.
        preconditions: expressions over effective settings and metrics; all must hold.
        moves: alternatives, each tried on its own: parameter of the search space -> verb or new value.
        step_time_pct: expected change of the step time in percent, [best, worst]; negative is faster.
        basis: what the range rests on (``measured``, ``rule_of_thumb`` ...).
        numerics: ``none``, ``reordering`` (floating-point order) or ``changes``.
        objective: ``none``, or ``changes`` for what the gate must reject.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    symptoms: tuple[str, ...] = Field(min_length=1)
    preconditions: tuple[str, ...] = ()
    moves: tuple[dict[str, Step], ...] = ()
    step_time_pct: tuple[float, float] | None = None
    basis: str
    numerics: Literal["none", "reordering", "changes"] = "none"
    objective: Literal["none", "changes"] = "none"
    note: str = ""
    retry: str = ""
    sources: tuple[str, ...] = Field(min_length=1)

    @field_validator("preconditions")
    @classmethod
    def _preconditions_compile(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            compile_expression(text)
        return texts

    @model_validator(mode="after")
    def _moves_are_safe_and_priced(self) -> Lesson:
        if self.moves and self.objective != "none":
            raise ValueError("a lesson that changes the objective is advice and must have no moves")
        if self.moves and self.step_time_pct is None:
            raise ValueError("a lesson with moves needs step_time_pct")
        if self.step_time_pct is not None and self.step_time_pct[0] > self.step_time_pct[1]:
            raise ValueError("step_time_pct must be [best, worst]")
        return self

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Whether every precondition holds. A precondition on something not known here does not hold."""
        return all(_holds(text, variables) for text in self.preconditions)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return self.model_dump(mode="json")


def _holds(text: str, variables: Mapping[str, Any]) -> bool:
    try:
        return bool(compile_expression(text).evaluate(variables))
    except UnknownName:
        return False


class Catalog(BaseModel):
    """All lessons: ``lessons`` can be acted on, ``advice`` is for people.

    Attributes:
        symptoms: the vocabulary, symptom -> what it means.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    symptoms: dict[str, str]
    lessons: tuple[Lesson, ...]
    advice: tuple[Lesson, ...]

    def all(self) -> tuple[Lesson, ...]:
        """Lessons first, then advice."""
        return self.lessons + self.advice


def load(path: Path | None = None) -> Catalog:
    """The catalog in ``path``, by default the one that ships with the package.

    Raises:
        UserError: the file is not a valid catalog; the message names the lesson.
    """
    return _shipped() if path is None else _parse(path.read_text(encoding="utf-8"), path.name)


@cache
def _shipped() -> Catalog:
    text = (files("attune_lab") / "data" / "lessons.yaml").read_text(encoding="utf-8")
    return _parse(text, "lessons.yaml")


def _parse(text: str, name: str) -> Catalog:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise UserError(f"{name}: not readable as YAML ({' '.join(str(error).split())}); correct it") from error
    try:
        catalog = Catalog.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{name}: {_first_problem(error, data)}") from error
    _check_cross_references(catalog, name)
    return catalog


def _first_problem(error: ValidationError, data: Any) -> str:
    """One sentence about the first schema error, with the id of the lesson it is in."""
    first = error.errors()[0]
    location = list(first["loc"])
    where = ".".join(str(part) for part in location) or "top level"
    if len(location) >= 2 and isinstance(location[1], int):
        entry = data[location[0]][location[1]]
        label = entry.get("id", f"number {location[1] + 1}") if isinstance(entry, dict) else f"number {location[1] + 1}"
        where = ".".join(["lesson " + str(label), *(str(part) for part in location[2:])])
    return f"{where}: {first['msg']}; correct the entry"


def _check_cross_references(catalog: Catalog, name: str) -> None:
    """Ids are unique, advice has no moves, symptoms are in the vocabulary."""
    seen: set[str] = set()
    for lesson in catalog.all():
        if lesson.id in seen:
            raise UserError(f"{name}: lesson {lesson.id}: the id is used twice; give each lesson its own")
        seen.add(lesson.id)
        if unknown := _unknown(lesson.symptoms, catalog.symptoms):
            raise UserError(f"{name}: lesson {lesson.id}: unknown symptom {unknown}; add it to symptoms or correct it")
    for lesson in catalog.lessons:
        if not lesson.moves:
            raise UserError(f"{name}: lesson {lesson.id}: no moves; add one or put the entry under advice")
    for lesson in catalog.advice:
        if lesson.moves:
            raise UserError(f"{name}: lesson {lesson.id}: advice has no moves; put the entry under lessons")


def _unknown(words: Iterable[str], vocabulary: Iterable[str]) -> str | None:
    known = set(vocabulary)
    return next((word for word in words if word not in known), None)
