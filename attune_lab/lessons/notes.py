"""Notes that a language model wrote during a campaign: kept for people to read, acted on by nobody.

What a model writes is text of a stranger. A note becomes a lesson only when a person writes it into a catalog file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from attune_lab.contracts import UserError
from attune_lab.foreign import one_line
from attune_lab.recipe.text_files import read_bytes
from attune_lab.writing import write_file

NOTES_FILE = "notes.json"
"""In the campaign's folder."""

MAX_NOTES = 100
"""So many notes of one campaign are kept."""

_LARGEST_FILE = 1_000_000
_UNPRINTABLE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> object:
    """``text`` on one line, without characters that a terminal would obey; what is no text is left alone."""
    return one_line(_UNPRINTABLE.sub(" ", text), 10_000) if isinstance(text, str) else text


def _known_symptom(name: str) -> str:
    from attune_lab.lessons.catalog import load

    if name not in load().symptoms:
        raise ValueError(f"{name!r} is no symptom of the catalog")
    return name


Line: TypeAlias = Annotated[str, BeforeValidator(plain), Field(min_length=1)]


class Note(BaseModel):
    """One lesson as a language model put it.

    Attributes:
        title: what to do, one line.
        text: why, and what was seen.
        symptoms: words of the catalog's vocabulary.
        runs: labels of the campaign's runs it rests on.
        author: the model that wrote it, as the transport calls it; said by the program, never by the model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: Annotated[Line, Field(max_length=120)]
    text: Annotated[Line, Field(max_length=1200)]
    symptoms: tuple[Annotated[str, AfterValidator(_known_symptom)], ...] = Field(default=(), max_length=8)
    runs: tuple[Annotated[Line, Field(max_length=64)], ...] = Field(default=(), max_length=20)
    author: Annotated[Line, Field(max_length=80)]


Notes = TypeAdapter(Annotated[tuple[Note, ...], Field(max_length=MAX_NOTES)])


def write_notes(folder: Path, notes: Sequence[Note]) -> None:
    """Replace the notes in a campaign's folder.

    Raises:
        EnvironmentFault: the file cannot be written.
    """
    write_file(folder / NOTES_FILE, Notes.dump_json(tuple(notes), indent=1))


def read_notes(folder: Path) -> tuple[Note, ...]:
    """The notes in a campaign's folder; none where nobody wrote any.

    Raises:
        UserError: the file is not what `write_notes` leaves.
    """
    path = folder / NOTES_FILE
    if not path.exists():
        return ()
    try:
        return Notes.validate_json(read_bytes(path, "notes file", _LARGEST_FILE))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "top level"
        raise UserError(f"{path}: {where}: {first['msg']}; correct it, or remove the file") from error
