"""A study as a person writes it: YAML in, one immutable value out, every mistake named at once."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from attune_lab.contracts import UserError
from attune_lab.foreign import read_yaml

_LARGEST_FILE = 1_000_000
_MOST = 1000
"""Entries of one list; every one is looked up before anything runs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+@=,()-]{0,79}")
"""Names become folders, so they are the same on every file system."""


def _named(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{_shown(text)} is no name: begin with a letter or digit, "
            "and take up to 80 of them, spaces and . _ + @ = , ( ) -"
        )
    return text


def _known_cluster(name: str) -> str:
    from simulator.hardware import parse_cluster

    return parse_cluster(name).name


def _known_budget(text: object) -> str:
    from attune_lab.campaign import parse_budget

    try:
        budget = parse_budget(str(text))
    except UserError as error:
        raise ValueError(str(error).removeprefix("--budget ")) from error
    if budget.multiple is not None and budget.multiple < 1:
        raise ValueError(f"{budget.text} is less than one run of the baseline; 40x is usual")
    return budget.text


def _known_tuner(name: str, info: ValidationInfo) -> str:
    """The name, when it and the wrappers after it are registered; nothing of them is loaded here."""
    if (info.context or {}).get("stored"):  # to read a study, its tuners need not be installed any more
        return name
    from attune_lab.workbench import tuner_entry_points, wrapper_entry_points

    tuner, *wrappers = name.split("+")
    wrap = wrapper_entry_points() if wrappers else {}
    parts = [("tuner", tuner, tuner_entry_points()), *(("wrapper", part, wrap) for part in wrappers)]
    for kind, part, known in parts:
        if part not in known:
            near = difflib.get_close_matches(part, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(sorted(known)) or 'none'}"
            raise ValueError(f"no {kind} is called {_shown(part)}; {hint}")
    return name


def _finite(options: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The options, when JSON can hold them: that is how a study keeps them."""
    try:
        json.dumps(options, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError("a number must be finite; write .inf and .nan as text where a tuner takes them") from error
    return options


Name: TypeAlias = Annotated[str, AfterValidator(_named)]
Factor: TypeAlias = Annotated[float, Field(ge=0, le=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ConditionsOfStudy(_Part):
    """Factors on the usual spread of physics, residuals and noise, and on the usual chance of failures and defects.

    See `simulator.world.Conditions`.
    """

    physics: Factor = 1.0
    residuals: Factor = 1.0
    noise: Factor = 1.0
    failures: Factor = 1.0
    defects: Factor = 1.0


class RulesOfStudy(_Part):
    """How proposals are answered; see `attune_lab.campaign.rules.AnswerRules`."""

    repeats: Literal["stored", "run"] = "stored"
    invalid: Literal["free", "charged"] = "free"
    free_answers: int = Field(default=20, ge=1, le=1_000_000)
    retries: int = Field(default=2, ge=0, le=1000)


class WorldsOfStudy(_Part):
    """The simulated worlds ``first``, ``first + 1``, … ``first + count - 1``; written ``20`` for worlds 0 to 19.

    Every tuner meets the same worlds, so tuners can be compared in pairs.
    """

    first: int = Field(default=0, ge=0, lt=2**53)
    count: int = Field(ge=1, le=100_000)

    @property
    def seeds(self) -> range:
        """The worlds, in order."""
        return range(self.first, self.first + self.count)


class TunerOfStudy(_Part):
    """A tuner under a label of its own; written as its name alone where that is label enough."""

    name: Annotated[str, AfterValidator(_known_tuner)]
    label: Name
    options: Annotated[dict[str, JsonValue], AfterValidator(_finite)] = {}

    @model_validator(mode="after")
    def _with_evidence_pinned(self, info: ValidationInfo) -> TunerOfStudy:
        """A file of evidence is looked for from the study's folder, and stays what it is when the study begins."""
        from attune_lab.lessons.evidence import pinned_options

        context = info.context or {}
        if context.get("stored"):
            return self
        try:
            options = pinned_options(self.name, self.options, Path(context.get("folder", ".")).resolve())
        except UserError as error:
            raise ValueError(str(error)) from error
        return self.model_copy(update={"options": options})

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"name": given, "label": given}
        if isinstance(given, Mapping) and isinstance(given.get("name"), str):
            return {"label": given["name"], **given}
        return given


class RecipeOfStudy(_Part):
    """A recipe: a name from `attune recipes`, or a file, looked for from the study's folder.

    Attributes:
        name: for tables: the shipped name, or the file's name without its suffix.
        source: what `attune_lab.recipe.files.load` takes.
        digest: of what it says, so that an edited file is noticed.
    """

    name: Name
    source: str
    digest: str

    @property
    def build(self) -> str:
        """What model it is, whatever it is called; see `attune_lab.lessons.context.build_of`.

        Raises:
            UserError: the file has gone, or does not say what it trains.
        """
        from attune_lab.lessons.context import build_of
        from attune_lab.recipe.files import load
        from attune_lab.recipe.shape import shape_of

        return build_of(shape_of(load(self.source).recipe))

    @model_validator(mode="before")
    @classmethod
    def _loaded(cls, given: Any, info: ValidationInfo) -> Any:
        from attune_lab.recipe.files import load

        if not isinstance(given, str):
            if not (info.context or {}).get("stored"):
                raise ValueError("write a name from attune recipes, or a file beside the study")
            return given
        path = Path((info.context or {}).get("folder", ".")) / given
        source = str(path.resolve()) if os.path.isfile(path) else given  # Path.is_file raises where a name is too long
        try:
            file = load(source)
        except UserError as error:
            raise ValueError(str(error)) from error
        name = given if file.folder is None else re.sub(r"\.(sh|ya?ml)$", "", path.name)
        return {"name": name, "source": source, "digest": file.recipe.digest}


def _counted(given: Any) -> Any:
    return {"count": given} if isinstance(given, int) and not isinstance(given, bool) else given


def _all_tuners(given: Any) -> Any:
    from attune_lab.workbench import tuner_entry_points

    return sorted(tuner_entry_points()) if given == "all" else given


class StudySpec(_Part):
    """A study. See docs/studies.md for the file it is written as.

    Attributes:
        recipes, clusters: every recipe is tuned on every cluster.
        budget: of each campaign, ``40x`` or GPU-hours.
        worlds: the simulated worlds, the same for every tuner.
        tuners: what is compared; ``all`` stands for every registered tuner.
        gate: ``off`` ships what measured best, whatever the gate says.
        approvals, carry_over: as in `attune tune`.
        time_limit_s: wall time after which a campaign's tuner counts as hung.
        memory_limit_gib: of the process a campaign runs in.
        held_out: evidence that a tuner is given must not come from a model or a world of the study.
        oracle: look up the optimum of every world, and the truth on what is shipped.
        logs: keep the log of every run.
    """

    name: Name
    recipes: tuple[RecipeOfStudy, ...] = Field(min_length=1, max_length=_MOST)
    clusters: tuple[Annotated[str, AfterValidator(_known_cluster)], ...] = Field(min_length=1, max_length=_MOST)
    budget: Annotated[str, BeforeValidator(_known_budget)]
    worlds: Annotated[WorldsOfStudy, BeforeValidator(_counted)]
    tuners: Annotated[tuple[TunerOfStudy, ...], BeforeValidator(_all_tuners)] = Field(min_length=1, max_length=_MOST)
    conditions: ConditionsOfStudy = ConditionsOfStudy()
    rules: RulesOfStudy = RulesOfStudy()
    gate: bool = True
    approvals: tuple[str, ...] = ()
    carry_over: bool | None = None
    time_limit_s: float = Field(default=1800.0, ge=1, le=10_000_000)
    memory_limit_gib: float = Field(default=8.0, ge=1, le=1_000_000)
    held_out: bool = True
    oracle: bool = True
    logs: bool = False

    @field_validator("recipes", "clusters", "tuners")
    @classmethod
    def _distinct(cls, entries: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        attribute = {"recipes": "name", "tuners": "label"}.get(info.field_name or "")
        names = [getattr(entry, attribute) if attribute else entry for entry in entries]
        counts = Counter(name.casefold() for name in names)
        twice = sorted({name for name in names if counts[name.casefold()] > 1})
        if twice:
            hint = "; give one of them another label" if info.field_name == "tuners" else ""
            raise ValueError(f"names {' and '.join(twice)} more than once{hint}")
        return entries

    @model_validator(mode="after")
    def _held_out(self, info: ValidationInfo) -> StudySpec:
        """No tuner knows campaigns of a model that is tuned here, whatever its name, or in the worlds of this study."""
        from attune_lab.lessons.evidence import Evidence, takes_evidence

        if (info.context or {}).get("stored") or not self.held_out:
            return self
        for tuner in self.tuners:
            if not takes_evidence(tuner.name, tuner.options):
                continue
            try:
                known = Evidence.load(tuner.options["lessons"])
                leaks = {recipe.name: model for recipe in self.recipes if (model := known.name_of(recipe.build))}
            except UserError as error:
                raise ValueError(f"tuner {tuner.label}: {error}") from error
            for name, model in leaks.items():
                raise ValueError(
                    f"the evidence of tuner {tuner.label} has campaigns of {model}, and {name} is that model; leave "
                    f"them out (attune lessons export FILE --without {model}), or write held_out: false"
                )
            if len(known.without_worlds(self.worlds.seeds).campaigns) < len(known.campaigns):
                raise ValueError(
                    f"the evidence of tuner {tuner.label} has campaigns in the simulated worlds of this study; learn "
                    "from other seeds, or write held_out: false"
                )
        return self

    @field_validator("approvals")
    @classmethod
    def _settled(cls, approvals: tuple[str, ...]) -> tuple[str, ...]:
        from attune_lab.parameters import settled_approvals

        try:
            return tuple(settled_approvals(approvals))
        except UserError as error:
            raise ValueError(str(error)) from error


def load_study(path: Path) -> StudySpec:
    """The study in a YAML file.

    Raises:
        UserError: no such file, or everything that is wrong with it, one clause each.
    """
    from attune_lab.recipe.text_files import read_bytes

    try:
        text = read_bytes(path, "study file", _LARGEST_FILE).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text; give a study file") from error
    return parse_study(text, where=str(path), folder=path.parent)


def parse_study(text: str, *, where: str = "study", folder: Path = Path()) -> StudySpec:
    """The study that a YAML text says; recipe files are looked for from ``folder``.

    Raises:
        UserError: everything that is wrong with it, one clause each.
    """
    from ruamel.yaml.error import YAMLError

    try:
        written = read_yaml(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is not YAML that can be used: {_position(error)}") from error
    if not isinstance(written, dict):
        raise UserError(f"{where} is no study: write keys and values such as name, recipes, clusters, tuners")
    try:
        return StudySpec.model_validate(written, context={"folder": folder})
    except ValidationError as error:
        said = " ".join("; ".join(_clauses(error)).split())  # on one line, whatever it quotes
        raise UserError(f"{where}: {said}") from error


def stored_study(text: bytes) -> StudySpec:
    """The study behind a folder, from the JSON that `attune_lab.study.run.run_study` keeps there.

    Raises:
        ValueError: it is not what was written.
    """
    return StudySpec.model_validate_json(text, context={"stored": True})


def _position(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return str(problem) if mark is None else f"{problem} in line {mark.line + 1}"


def _clauses(error: ValidationError) -> Iterator[str]:
    """One clause a mistake: where it is, what is wrong, what to write."""
    mistakes = error.errors(include_url=False)
    for mistake in mistakes:
        where, key = _path(mistake["loc"]), str(mistake["loc"][-1]) if mistake["loc"] else ""
        match mistake["type"]:
            case "missing":
                yield f"{where} is missing"
            case "extra_forbidden":
                known = _keys_beside(mistake["loc"])
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                yield f"{where} is no key of a study; {hint}"
            case "invalid_key":
                yield f"the key {key[:60]} is no text"
            case "value_error":
                yield f"{where}: {mistake['ctx']['error']}"
            case "too_short":
                if sum(other["loc"][:1] == mistake["loc"][:1] for other in mistakes) == 1:  # else its entries are named
                    yield f"{where} is empty; name at least one"
            case _:
                yield f"{where}: {_shown(mistake['input'])} is refused: {_lower(mistake['msg'])}"


def _path(location: Sequence[str | int]) -> str:
    """``tuners[2].label``, entries counted from 0; a message holds no more of a stranger's key than a line."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step[:60]}"
    return text or "the study"


def _keys_beside(location: Sequence[str | int]) -> list[str]:
    """The keys that are known where an unknown one stands."""
    parts: dict[str, type[BaseModel]] = {
        "conditions": ConditionsOfStudy,
        "rules": RulesOfStudy,
        "worlds": WorldsOfStudy,
        "tuners": TunerOfStudy,
        "recipes": RecipeOfStudy,
    }
    model = parts.get(str(location[0]), StudySpec) if len(location) > 1 else StudySpec
    return list(model.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
