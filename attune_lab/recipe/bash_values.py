"""Values of shell variables, expanded with the places in the file that every piece comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from attune_lab.contracts import UserError
from attune_lab.recipe.arithmetic import evaluate
from attune_lab.recipe.bash_syntax import Part, Token
from attune_lab.recipe.words import Region, line_of

_MAX_EXPANDED = 200_000


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
    scalars: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    exported: dict[str, Region] = field(default_factory=dict)


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
                chunks += (replace(c, quoted=part.quoted) for c in self.dynamic(part.value, part))
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
        scope = self.scope
        if part.value in scope.scalars:
            value = scope.scalars[part.value]
            if not part.default or any(c.text for c in value):
                return list(self._through(value, part))
        elif part.value in scope.arrays:
            array = scope.arrays[part.value]
            joined = array if part.every else array[:1]
            gap = (Chunk(" ", (), part.quoted),)
            flat = [c for i, element in enumerate(joined) for c in ((*gap, *element) if i else element)]
            return list(self._through(tuple(flat), part))
        if part.default is not None:
            return list(self._through(tuple(self.chunks(part.default)), part))
        positional = not re.fullmatch(r"[A-Za-z_]\w*", part.value)
        raw = self.text[part.start : part.end]
        region = self.region(part.start, part.end, quoted=part.quoted, name=part.value)
        return [Chunk(raw, (region,), quoted=True, status="dynamic" if positional else "unset")]

    def _arithmetic(self, part: Part) -> Chunk:
        region = self.region(part.start, part.end, quoted=part.quoted)

        def number(name: str) -> int | None:
            text = text_of(self.scope.scalars.get(name, ()))
            return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None

        value = evaluate(part.value, number)
        if value is None:
            return Chunk(self.text[part.start : part.end], (region,), quoted=True, status="dynamic")
        return Chunk(str(value), (region,), quoted=True)


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
