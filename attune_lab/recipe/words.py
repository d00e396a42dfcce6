"""What a reader hands over: the words of the training command, each with the places in the file it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attune_lab.contracts import UserError


@dataclass(frozen=True)
class Region:
    """A piece of the file, ``text[start:end]``.

    Attributes:
        quoted: it lies inside quotes, so new text is written there as it is.
        name: the variable, where the piece is a reference to one.
        own: it lies in the recipe's own file, not in one it includes; only such pieces can be edited.
    """

    start: int
    end: int
    quoted: bool = False
    name: str | None = None
    own: bool = True


@dataclass(frozen=True)
class Word:
    """One argument of the training command.

    Attributes:
        text: after substitution; pieces nobody can know stand as written (``$3``).
        line: where it is written, from 1.
        regions: places that hold this word and nothing else, the outermost (the use) first, the definition last.
        known: the text is fully known without running the script.
    """

    text: str
    line: int
    regions: tuple[Region, ...]
    known: bool = True


@dataclass(frozen=True)
class Variable:
    """An environment variable the recipe sets: its value, the places of the value, and the whole setting of it.

    ``listed``: it stands in a list given to the launcher, where only its value can be changed.
    """

    value: str
    regions: tuple[Region, ...]
    statement: Region
    listed: bool = False


@dataclass(frozen=True)
class Launch:
    """What a recipe file starts.

    Attributes:
        text: the file.
        words: arguments of the training program.
        environment: variables it sets for the program.
        launcher: ``nnodes`` and ``nproc_per_node`` where the launch line states them.
        launcher_words: the words that hold these numbers, where they stand alone.
        start: where the statement with the training command begins.
        images: container images named in the file, by variable.
        included: texts of the files it includes, by the names it gives them; None where there is no such file.
    """

    text: str
    words: tuple[Word, ...]
    environment: Mapping[str, Variable]
    launcher: Mapping[str, int] = field(default_factory=dict)
    launcher_words: Mapping[str, Word] = field(default_factory=dict)
    start: int = 0
    images: Mapping[str, str] = field(default_factory=dict)
    included: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """Replace ``text[start:end]``."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: list[Edit]) -> str:
    """``text`` with all edits applied; edits at one position come out in the order given.

    Raises:
        UserError: two edits overlap.
    """
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < position:
            raise UserError(f"line {line_of(text, edit.start)}: two changes meet in one place; make them one at a time")
        pieces += (text[position : edit.start], edit.text)
        position = edit.end
    return "".join((*pieces, text[position:]))


def line_of(text: str, position: int) -> int:
    """The line of a position, from 1."""
    return text.count("\n", 0, position) + 1


def line_span(text: str, position: int) -> tuple[int, int]:
    """Start and end of the line at ``position``, its line end included."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return start, len(text) if end < 0 else end + 1


def newline_of(text: str) -> str:
    """The file's own line end."""
    return "\r\n" if "\r\n" in text else "\n"
