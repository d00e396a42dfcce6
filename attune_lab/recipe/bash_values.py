"""Values of shell variables, expanded with the places in the file that every piece comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from attune_lab.contracts import UserError
from attune_lab.recipe.arithmetic import evaluate
from attune_lab.recipe.bash_syntax import Lexer, Part, Token
from attune_lab.recipe.text_files import read_text
from attune_lab.recipe.words import Region, line_of

_MAX_EXPANDED = 200_000
_MAX_NESTED = 10
_REDIRECTION = re.compile(r"(?:\d?>>?|&>>?|>&|\d?<)(\S*)")


@dataclass(frozen=True)
class Chunk:
    """A run of text with its trail of places, outermost first. ``status``: known, unset or dynamic."""

    text: str
    trail: tuple[Region, ...]
    quoted: bool
    status: str = "known"


Scalar: TypeAlias = tuple[Chunk, ...]
Array: TypeAlias = tuple[Scalar, ...]


@dataclass
class Scope:
    """Variables. The arguments of the script are taken as absent: ``$@`` is empty, ``$1`` unknown."""

    scalars: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=lambda: {"@": (), "*": ()})
    exported: dict[str, Region] = field(default_factory=dict)

    def pass_arguments(self, arguments: Array) -> None:
        """Make ``arguments`` the ``$1``, ``$2`` ... and ``$@`` of what follows."""
        for name in [name for name in self.scalars if name.isdigit()]:
            del self.scalars[name]
        self.scalars |= {str(i): argument for i, argument in enumerate(arguments, 1)}
        self.arrays["@"] = self.arrays["*"] = arguments


class Expander:
    """Expands words as written in ``text`` with the variables of ``scope``; ``own`` marks the recipe's own file."""

    def __init__(self, text: str, scope: Scope, *, own: bool) -> None:
        self.text = text
        self.scope = scope
        self.own = own

    def dynamic(self, raw: str, token: Token | Part) -> Scalar:
        return (Chunk(raw, (self.region(token.start, token.end, quoted=False),), quoted=False, status="dynamic"),)

    def region(self, start: int, end: int, *, quoted: bool, name: str | None = None) -> Region:
        return Region(start, end, quoted, name, self.own)

    def value(self, token: Token, skipped: int) -> Scalar:
        """The value after ``NAME=``."""
        first = token.parts[0]
        rest = replace(first, value=first.value[skipped:], start=first.start + skipped)
        parts = (rest, *token.parts[1:]) if rest.value else token.parts[1:]
        return tuple(self.chunks(parts))

    def fields(self, token: Token) -> list[Scalar]:
        """The words a written word expands to."""
        outer = self.region(token.start, token.end, quoted=False)
        if len(token.parts) == 1 and token.parts[0].every and token.parts[0].value in self.scope.arrays:
            part = token.parts[0]
            elements = [self._through(element, part) for element in self.scope.arrays[part.value]]
            fields = elements if part.quoted else [piece for element in elements for piece in split(element)]
        else:
            fields = split(tuple(self.chunks(token.parts)))
        return [tuple(replace(c, trail=(outer, *c.trail)) for c in field) for field in fields]

    def all_fields(self, tokens: Iterable[Token]) -> list[Scalar]:
        """The words that several written words expand to.

        Raises:
            UserError: more than a launch script can mean, as where an array doubles itself again and again.
        """
        fields: list[Scalar] = []
        for token in tokens:
            fields += self.fields(token)
            if len(fields) > _MAX_EXPANDED // 10:
                line = line_of(self.text, token.start)
                raise UserError(f"line {line}: the arrays expand to too many words; a launch script has a few hundred")
        return fields

    def chunks(self, parts: Iterable[Part]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for part in parts:
            if part.kind == "text":
                region = self.region(part.start, part.end, quoted=part.quoted)
                chunks.append(Chunk(part.value, (region,), quoted=True))
            elif part.kind == "opaque":
                chunks += (replace(c, quoted=part.quoted) for c in self._substituted(part))
            elif part.kind == "arith":
                chunks.append(self._arithmetic(part))
            else:
                chunks += self._reference(part)
        if sum(len(chunk.text) for chunk in chunks) > _MAX_EXPANDED or len(chunks) > _MAX_EXPANDED // 10:
            line = line_of(self.text, chunks[0].trail[0].start)
            raise UserError(
                f"line {line}: the variables expand to more than {_MAX_EXPANDED} characters; write them out"
            )
        return chunks

    def _through(self, scalar: Scalar, part: Part) -> Scalar:
        """A variable's chunks as seen through a reference to it."""
        region = self.region(part.start, part.end, quoted=part.quoted, name=part.value)
        return tuple(replace(c, trail=(region, *c.trail), quoted=part.quoted) for c in scalar)

    def _reference(self, part: Part) -> list[Chunk]:
        stored, operator = self._stored(part), part.operator
        empty = stored is None or not any(c.text for c in stored)
        missing = empty if operator.startswith(":") else stored is None
        if operator == "#":
            return [self._length(part, stored)]
        if operator in ("+", ":+"):
            return [] if missing else list(self._through(tuple(self.chunks(part.default or ())), part))
        if part.default is not None and missing:
            value = tuple(self.chunks(part.default))
            if operator.endswith("="):
                self.scope.scalars[part.value] = value
            return list(self._through(value, part))
        if stored is not None:
            change = {",,": str.lower, "^^": str.upper}.get(operator, str)
            return [replace(c, text=change(c.text)) for c in self._through(stored, part)]
        positional = not re.fullmatch(r"[A-Za-z_]\w*", part.value)
        raw = self.text[part.start : part.end]
        region = self.region(part.start, part.end, quoted=part.quoted, name=part.value)
        return [Chunk(raw, (region,), quoted=True, status="dynamic" if positional else "unset")]

    def _stored(self, part: Part) -> Scalar | None:
        """What the variable holds: an element, or all of an array joined by blanks; None when it is not set."""
        array = self.scope.arrays.get(part.value)
        if array is None:
            return self.scope.scalars.get(part.value) if not part.index else None
        if not part.every:
            return array[part.index or 0] if (part.index or 0) < len(array) else None
        gap = (Chunk(" ", (), part.quoted),)
        return tuple(c for i, element in enumerate(array) for c in ((*gap, *element) if i else element))

    def _length(self, part: Part, stored: Scalar | None) -> Chunk:
        region = self.region(part.start, part.end, quoted=part.quoted)
        if any(c.status == "dynamic" for c in stored or ()):
            return Chunk(self.text[part.start : part.end], (region,), quoted=True, status="dynamic")
        count = len(self.scope.arrays.get(part.value, ())) if part.every else len(text_of(stored or ()))
        return Chunk(str(count), (region,), quoted=True)

    def _substituted(self, part: Part) -> Scalar:
        """The text of ``$(echo ...)``, with ``IFS=`` before it where given; any other command needs a run."""
        if not part.value.startswith("$(") or part.value.count("$(") > _MAX_NESTED:
            return self.dynamic(part.value, part)
        tokens = Lexer(self.text, part.start + 2, part.end - 1).tokens()
        gap = " "
        if [t.operator for t in tokens[1:2]] == [";"] and (assigned := tokens[0].assigned) and assigned[1] == "IFS":
            gap = text_of(self.value(tokens[0], assigned.end()))[:1]
            tokens = tokens[2:]
        if not tokens or tokens[0].bare != "echo" or any(t.operator for t in tokens):
            return self.dynamic(part.value, part)
        fields = [field for token in tokens[1:] for field in self.fields(token)]
        if any(c.status != "known" for field in fields for c in field):
            return self.dynamic(part.value, part)
        text = gap.join(text_of(field) for field in fields)
        return (Chunk(text, (self.region(part.start, part.end, quoted=False),), quoted=False),)

    def _arithmetic(self, part: Part) -> Chunk:
        region = self.region(part.start, part.end, quoted=part.quoted)
        value = evaluate(part.value, self.number)
        if value is None:
            return Chunk(self.text[part.start : part.end], (region,), quoted=True, status="dynamic")
        return Chunk(str(value), (region,), quoted=True)

    def number(self, name: str) -> int | None:
        """The whole number a variable holds, None where it holds none or nobody knows."""
        text = text_of(self.scope.scalars.get(name, ()))
        return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None


def text_of(scalar: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in scalar)


def split(scalar: Sequence[Chunk]) -> list[Scalar]:
    """Split at the blanks of unquoted chunks; the pieces keep the exact places where the text is literal."""
    fields: list[list[Chunk]] = []
    open_field = False
    for chunk in scalar:
        if chunk.quoted or chunk.status != "known":
            if not open_field:
                fields.append([])
            fields[-1].append(chunk)
            open_field = True
            continue
        for match in re.finditer(r"\s+|\S+", chunk.text):
            if match[0].isspace():
                open_field = False
                continue
            if not open_field:
                fields.append([])
            fields[-1].append(_piece(chunk, match.start(), match.end()))
            open_field = True
    return [tuple(field) for field in fields]


def _piece(chunk: Chunk, start: int, end: int) -> Chunk:
    if not chunk.trail or (start, end) == (0, len(chunk.text)):
        return replace(chunk, text=chunk.text[start:end])
    last = chunk.trail[-1]
    if last.end - last.start == len(chunk.text) and last.name is None:
        place = replace(last, start=last.start + start, end=last.start + end)
        return replace(chunk, text=chunk.text[start:end], trail=(*chunk.trail[:-1], place))
    return replace(chunk, text=chunk.text[start:end])


def one_command(fields: Sequence[Scalar], wanted: Callable[[str], bool]) -> list[Scalar]:
    """The words of the command with a ``wanted`` word, out of the words of a script held in variables.

    Quotes are taken off, redirections and the commands around it are left out.
    """
    commands: list[list[Scalar]] = [[]]
    redirected = False
    for scalar in _requoted(fields):
        text = text_of(scalar)
        if redirected:
            redirected = False
        elif text in ("|", "|&", "||", "&&", "&", ";"):
            commands.append([])
        elif match := _REDIRECTION.fullmatch(text):
            redirected = not match[1]
        else:
            commands[-1].append(scalar)
    return next((command for command in commands if any(wanted(text_of(s)) for s in command)), commands[0])


def _requoted(fields: Iterable[Scalar]) -> list[Scalar]:
    """Words with the quotes they were written in taken off; what was split inside quotes is one word again."""
    words: list[Scalar] = []
    quote = ""
    for scalar in fields:
        text = text_of(scalar)
        if quote:
            words[-1] = (*words[-1], Chunk(" ", (), quoted=True), *scalar)
        else:
            words.append(scalar)
            quote = text[:1] if text[:1] in ("'", '"') else ""
        if quote and text.endswith(quote) and (len(text) > 1 or text_of(words[-1]) != text):
            words[-1] = _bare(words[-1])
            quote = ""
    return words


def _bare(scalar: Scalar) -> Scalar:
    """A word without its first and last character."""
    first = replace(scalar[0], text=scalar[0].text[1:])
    rest = (first, *scalar[1:])
    return (*rest[:-1], replace(rest[-1], text=rest[-1].text[:-1]))


def unknown_in(chunks: Iterable[Chunk]) -> str:
    """What nobody can know of the chunks, as `` because NAME is $2``; '' where all is known."""
    for chunk in chunks:
        if chunk.status == "dynamic":
            name = next((region.name for region in chunk.trail if region.name), None)
            return (
                f" because {name} is {chunk.text}" if name and name != chunk.text.strip("${}") else f" ({chunk.text})"
            )
    return ""


def relative_name(chunks: Sequence[Chunk]) -> str | None:
    """The file that chunks name, as written from the script's own folder; None where they name an absolute path.

    A part that needs a run, as in ``$(dirname "$0")/x.sh``, is taken for the script's own folder.
    """
    written = "".join(chunk.text for chunk in chunks if chunk.status == "known")
    if written.startswith("/") and all(chunk.status == "known" for chunk in chunks):
        return None
    return written.lstrip("/")


def included_text(folder: Path, name: str) -> str | None:
    """The text of what a script in ``folder`` calls ``name``, found there or one folder up; None for any other file.

    Raises:
        UserError: a binary file, or one that cannot be read.
    """
    own = folder.resolve()
    top = own.parent if own.parent != own.parent.parent else own
    try:
        paths = [(base / name).resolve() for base in (own, top)]
        found = next((path for path in paths if path.is_relative_to(top) and path.is_file()), None)
    except (OSError, RuntimeError):  # a name too long, or links in a circle: nothing Bash could read either
        return None
    return None if found is None else read_text(found)
