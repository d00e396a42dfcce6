"""Reads a Bash launch script without running it.

Assignments, arrays and decidable `if` blocks are followed as Bash would, with the caller's environment taken as
empty, so `${TP:-8}` is 8. Every piece of the resulting command line remembers where in the file it was written. What
cannot be known without running (command substitution, positional parameters) stays as written and is refused only
where a setting needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from attune_lab.contracts import UserError
from attune_lab.recipe.arithmetic import evaluate
from attune_lab.recipe.bash_syntax import REDIRECTIONS, Command, If, Node, Opaque, Part, Token, parse
from attune_lab.recipe.registry import setting_of_flag
from attune_lab.recipe.words import Launch, Region, Variable, Word, line_of

_MAX_EXPANDED = 200_000
_MAX_SOURCED = 20
_PRINTERS = frozenset({"echo", "printf", "cat", "logger", ":", "true", "test", "[", "[["})
_LAUNCHER_COUNTS = {"--nnodes": "nnodes", "--nproc_per_node": "nproc_per_node", "--nproc-per-node": "nproc_per_node"}


@dataclass(frozen=True)
class _Chunk:
    """A run of text with its trail of places, outermost first. ``status``: known, unset or dynamic."""

    text: str
    trail: tuple[Region, ...]
    quoted: bool
    status: str = "known"


_Scalar: TypeAlias = tuple[_Chunk, ...]
_Array: TypeAlias = tuple[_Scalar, ...]


@dataclass
class _Scope:
    scalars: dict[str, _Scalar] = field(default_factory=dict)
    arrays: dict[str, _Array] = field(default_factory=dict)
    exported: dict[str, Region] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """A command that passes Megatron-LM flags."""

    fields: list[_Scalar]
    prefix: dict[str, tuple[_Scalar, Region]]
    start: int
    list_start: int


def read_bash(text: str, folder: Path | None = None) -> Launch:
    """The training command of a launch script and the environment it starts it in.

    Args:
        text: the script.
        folder: where `source` finds sibling files; None allows none.

    Raises:
        UserError: no or several training commands, or something a setting depends on cannot be known.
    """
    reader = _Reader(text, folder)
    reader.run(parse(text))
    if not reader.found:
        raise UserError(
            "no command passes a Megatron-LM flag such as --num-layers; give the script that starts training"
        )
    if len(reader.found) > 1:
        first, second = (line_of(text, found.start) for found in reader.found[:2])
        raise UserError(f"lines {first} and {second} each start a training run; keep one of them in the file")
    return reader.launch(reader.found[0])


class _Reader:
    def __init__(self, text: str, folder: Path | None) -> None:
        self.text = text
        self.folder = folder
        self.scope = _Scope()
        self.found: list[_Found] = []
        self.own = True
        self.included = 0

    def run(self, nodes: Sequence[Node]) -> None:
        """Follow the nodes in order."""
        last: bool | None = True
        for node in nodes:
            if isinstance(node, If):
                self._run_if(node)
                last = True
            elif isinstance(node, Opaque):
                self._skip(node.tokens, node.start, f"inside '{node.kind}'")
                last = True
            elif (node.joiner == "&&" and last is False) or (node.joiner == "||" and last is True):
                continue
            elif node.joiner in ("&&", "||") and last is None:
                self._skip(node.tokens, node.tokens[0].start, f"behind a '{node.joiner}' whose test needs a run")
            else:
                last = self._command(node)

    def _run_if(self, node: If) -> None:
        for condition, body in node.branches:
            outcome = self._holds(condition) if condition else True
            if outcome is None:
                self._skip(node.tokens, node.start, "inside an 'if' whose test needs a run")
                return
            if outcome:
                self.run(body)
                return

    def _holds(self, condition: Sequence[Node]) -> bool | None:
        outcome: bool | None = None
        for node in condition:
            if not isinstance(node, Command):
                return None
            here = self._test(node)
            outcome = {"&&": _all, "||": _any}.get(node.joiner, lambda pair: pair[1])((outcome, here))
        return outcome

    def _skip(self, tokens: Iterable[Token], start: int, where: str) -> None:
        """Pass over what cannot be decided: it may set variables, but must not hold flags we would miss."""
        for token in tokens:
            for word in (*(token.elements or ()), token):
                for piece in word.parts:
                    for flag in re.findall(r"(?<!\S)--[A-Za-z0-9_-]+", piece.value) if piece.kind == "text" else ():
                        if setting_of_flag(flag):
                            raise UserError(
                                f"line {line_of(self.text, start)}: {flag} stands {where}; write the flags of the run "
                                "you mean outside of it"
                            )
            if assigned := token.assigned:
                self.scope.arrays.pop(assigned[1], None)
                self.scope.scalars[assigned[1]] = self._dynamic(f"${assigned[1]}", token)

    def _dynamic(self, raw: str, token: Token | Part) -> _Scalar:
        return (_Chunk(raw, (self._region(token.start, token.end, quoted=False),), quoted=False, status="dynamic"),)

    def _region(self, start: int, end: int, *, quoted: bool, name: str | None = None) -> Region:
        return Region(start, end, quoted, name, self.own)

    # Commands

    def _command(self, node: Command) -> bool | None:
        tokens = _without_redirections(node.tokens)
        words = list(tokens)
        prefix: dict[str, tuple[_Scalar, Region]] = {}
        while words and words[0].assigned:
            self._note_prefix(words.pop(0), prefix)
        if not words:
            for token in tokens:
                self._assign(token)
            return True
        name = words[0].bare
        if name in ("export", "declare", "local", "readonly", "typeset"):
            self._export(words)
            return True
        if name in ("source", "."):
            self._source(words)
            return True
        if name in ("[", "[[", "test"):
            return self._test(node)
        if name not in _PRINTERS:
            self._consider(words, prefix, node)
        return True

    def _note_prefix(self, token: Token, prefix: dict[str, tuple[_Scalar, Region]]) -> None:
        assigned = token.assigned
        if assigned and token.elements is None:
            value = self._value(token, assigned.end())
            prefix[assigned[1]] = (value, self._region(token.start, token.end, quoted=False))

    def _assign(self, token: Token) -> None:
        assigned = token.assigned
        if not assigned:
            return
        name, append = assigned[1], bool(assigned[2])
        if token.elements is not None:
            before = self.scope.arrays.get(name, ()) if append else ()
            fields = [field for element in token.elements for field in self._fields(element)]
            self.scope.scalars.pop(name, None)
            self.scope.arrays[name] = (*before, *fields)
        else:
            before_text = self.scope.scalars.get(name, ()) if append else ()
            self.scope.arrays.pop(name, None)
            self.scope.scalars[name] = (*before_text, *self._value(token, assigned.end()))

    def _value(self, token: Token, skipped: int) -> _Scalar:
        """The value after ``NAME=``."""
        first = token.parts[0]
        rest = replace(first, value=first.value[skipped:], start=first.start + skipped)
        parts = (rest, *token.parts[1:]) if rest.value else token.parts[1:]
        return tuple(self._chunks(parts))

    def _export(self, words: Sequence[Token]) -> None:
        exporting = words[0].bare == "export" or any(word.bare == "-x" for word in words)
        for word in words[1:]:
            name = word.assigned[1] if word.assigned else word.bare
            self._assign(word)
            if exporting and not name.startswith("-"):
                self.scope.exported[name] = self._region(word.start, word.end, quoted=False)

    def _source(self, words: Sequence[Token]) -> None:
        """Include a file of the script's own folder; others are left out, and miss where a setting needs them."""
        if len(words) < 2 or self.folder is None:
            return
        written = "".join(chunk.text for chunk in self._chunks(words[1].parts) if chunk.status != "dynamic")
        path = (self.folder / written.lstrip("/")).resolve()
        if Path(written).is_absolute() and not any(part.kind != "text" for part in words[1].parts):
            path = Path(written).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            return
        self.included += 1
        if self.included > _MAX_SOURCED:
            line = line_of(self.text, words[0].start)
            raise UserError(f"line {line}: files include each other without end; write the settings into one file")
        text, own = self.text, self.own
        from attune_lab.recipe.files import read_text

        self.text, self.own = read_text(path), False
        try:
            self.run(parse(self.text))
        except UserError as error:
            raise UserError(f"{path.name}, {error}") from None
        finally:
            self.text, self.own = text, own

    def _consider(self, words: Sequence[Token], prefix: dict[str, tuple[_Scalar, Region]], node: Command) -> None:
        fields = [field for word in words for field in self._fields(word)]
        texts = [_text(field) for field in fields]
        if texts[:1] == ["eval"] or any(text in ("-c", "-lc") for text in texts):
            fields = [piece for field in fields for piece in _split([replace(c, quoted=False) for c in field])]
        if any(setting_of_flag(_text(field).partition("=")[0]) for field in fields):
            self.found.append(_Found(fields, prefix, words[0].start, node.list_start))

    def _test(self, node: Command) -> bool | None:
        """Outcome of ``[ ... ]``, None when it needs a run."""
        fields = [("".join(c.text for c in f if c.status != "unset"), f) for t in node.tokens for f in self._tested(t)]
        texts = [text for text, _ in fields]
        if not texts or texts[0] not in ("[", "[[", "test") or any(c.status == "dynamic" for _, f in fields for c in f):
            return None
        inner = texts[1:] if texts[0] == "test" else texts[1:-1]
        return _any(_all(_negatable(test) for test in _cut(group, "&&")) for group in _cut(inner, "||"))

    def _tested(self, token: Token) -> list[_Scalar]:
        if token.operator:
            return [(_Chunk(token.operator, (), quoted=False),)]
        return [tuple(self._chunks(token.parts))]

    # Expansion

    def _fields(self, token: Token) -> list[_Scalar]:
        """The words a written word expands to."""
        outer = self._region(token.start, token.end, quoted=False)
        if len(token.parts) == 1 and token.parts[0].every and token.parts[0].value in self.scope.arrays:
            part = token.parts[0]
            elements = [self._through(element, part) for element in self.scope.arrays[part.value]]
            fields = elements if part.quoted else [piece for element in elements for piece in _split(element)]
        else:
            fields = _split(tuple(self._chunks(token.parts)))
        return [tuple(replace(c, trail=(outer, *c.trail)) for c in field) for field in fields]

    def _chunks(self, parts: Iterable[Part]) -> list[_Chunk]:
        chunks: list[_Chunk] = []
        for part in parts:
            if part.kind == "text":
                region = self._region(part.start, part.end, quoted=part.quoted)
                chunks.append(_Chunk(part.value, (region,), quoted=True))
            elif part.kind == "opaque":
                chunks += (replace(c, quoted=part.quoted) for c in self._dynamic(part.value, part))
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

    def _through(self, scalar: _Scalar, part: Part) -> _Scalar:
        """A variable's chunks as seen through a reference to it."""
        region = self._region(part.start, part.end, quoted=part.quoted, name=part.value)
        return tuple(replace(c, trail=(region, *c.trail), quoted=part.quoted) for c in scalar)

    def _reference(self, part: Part) -> list[_Chunk]:
        scope = self.scope
        if part.value in scope.scalars:
            value = scope.scalars[part.value]
            if not part.default or any(c.text for c in value):
                return list(self._through(value, part))
        elif part.value in scope.arrays:
            array = scope.arrays[part.value]
            joined = array if part.every else array[:1]
            gap = (_Chunk(" ", (), part.quoted),)
            flat = [c for i, element in enumerate(joined) for c in ((*gap, *element) if i else element)]
            return list(self._through(tuple(flat), part))
        if part.default is not None:
            return list(self._through(tuple(self._chunks(part.default)), part))
        positional = not re.fullmatch(r"[A-Za-z_]\w*", part.value)
        raw = self.text[part.start : part.end]
        region = self._region(part.start, part.end, quoted=part.quoted, name=part.value)
        return [_Chunk(raw, (region,), quoted=True, status="dynamic" if positional else "unset")]

    def _arithmetic(self, part: Part) -> _Chunk:
        region = self._region(part.start, part.end, quoted=part.quoted)

        def number(name: str) -> int | None:
            text = _text(self.scope.scalars.get(name, ()))
            return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None

        value = evaluate(part.value, number)
        if value is None:
            return _Chunk(self.text[part.start : part.end], (region,), quoted=True, status="dynamic")
        return _Chunk(str(value), (region,), quoted=True)

    # The result

    def launch(self, found: _Found) -> Launch:
        """The command as words with the places each one owns."""
        fields, launcher = _without_launcher(found.fields)
        owners: dict[Region, set[int]] = {}
        for index, scalar in enumerate(fields):
            for region in {r for chunk in scalar for r in chunk.trail}:
                owners.setdefault(region, set()).add(index)
        words = tuple(self._word(index, scalar, owners, found) for index, scalar in enumerate(fields))
        exported = {
            name: (self.scope.scalars[name], region)
            for name, region in self.scope.exported.items()
            if name in self.scope.scalars
        }
        environment = {name: self._variable(*entry) for name, entry in {**exported, **found.prefix}.items()}
        images = {
            name: _text(value)
            for name, value in self.scope.scalars.items()
            if re.search(r"(?i)image|container", name) and all(c.status == "known" for c in value)
        }
        return Launch(self.text, words, environment, launcher, found.list_start, images)

    def _word(self, index: int, scalar: _Scalar, owners: dict[Region, set[int]], found: _Found) -> Word:
        common = [r for r in scalar[0].trail if all(r in c.trail for c in scalar) and owners[r] == {index}]
        own = tuple(r for r in common if r.own)
        shown = next((r for r in scalar[0].trail[::-1] if r.own), None)
        line = line_of(self.text, own[0].start if own else shown.start if shown else found.start)
        missing = next((c.text for c in scalar if c.status != "known" and "[@]" in c.text), None)
        if missing:
            raise UserError(
                f"line {line}: {missing} is defined nowhere in this file; put the file that defines it beside it or "
                "write the flags out"
            )
        regions = tuple(r for i, r in enumerate(own) if self._alone(own[: i + 1]))
        return Word(_text(scalar), line, regions, all(c.status == "known" for c in scalar))

    def _alone(self, trail: tuple[Region, ...]) -> bool:
        """The innermost region can be edited: every variable on the way to it is used nowhere else."""
        names = [region.name for region in trail[:-1] if region.name]
        return all(_uses(self.text, name) <= 1 and name not in self.scope.exported for name in names)

    def _variable(self, value: _Scalar, statement: Region) -> Variable:
        regions: tuple[Region, ...] = ()
        if value:
            common = [r for r in value[0].trail if all(r in c.trail for c in value)]
            regions = tuple(r for i, r in enumerate(common) if r.own and self._alone(tuple(common[: i + 1])))
        return Variable(_text(value), regions, statement)


def _uses(text: str, name: str) -> int:
    """How often a variable is mentioned beyond its one definition (and the `${NAME:-...}` inside it)."""
    mentions = len(re.findall(rf"\b{re.escape(name)}\b", text))
    definitions = len(re.findall(rf"(?m)(?:^|[\s;]){re.escape(name)}=", text))
    defaulted = len(re.findall(rf"\b{re.escape(name)}=[\"']?\$\{{{re.escape(name)}:?-", text))
    return mentions - 1 - defaulted if definitions == 1 else mentions


def _text(scalar: Iterable[_Chunk]) -> str:
    return "".join(chunk.text for chunk in scalar)


def _split(scalar: Sequence[_Chunk]) -> list[_Scalar]:
    """Split at the blanks of unquoted chunks; the pieces keep the exact places where the text is literal."""
    fields: list[list[_Chunk]] = []
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


def _piece(chunk: _Chunk, start: int, end: int) -> _Chunk:
    if not chunk.trail or (start, end) == (0, len(chunk.text)):
        return replace(chunk, text=chunk.text[start:end])
    last = chunk.trail[-1]
    if last.end - last.start == len(chunk.text) and last.name is None:
        place = replace(last, start=last.start + start, end=last.start + end)
        return replace(chunk, text=chunk.text[start:end], trail=(*chunk.trail[:-1], place))
    return replace(chunk, text=chunk.text[start:end])


def _without_redirections(tokens: Sequence[Token]) -> list[Token]:
    kept: list[Token] = []
    skip = False
    for token in tokens:
        if token.operator in REDIRECTIONS:
            if kept and kept[-1].end == token.start and kept[-1].bare.isdigit():
                kept.pop()
            skip = True
        elif skip:
            skip = False
        else:
            kept.append(token)
    return kept


def _without_launcher(fields: Sequence[_Scalar]) -> tuple[list[_Scalar], dict[str, int]]:
    """The arguments after the training program, and the counts of nodes and processes before it."""
    texts = [_text(field) for field in fields]
    scripts = [i for i, text in enumerate(texts) if text.endswith(".py")] or [
        i for i, text in enumerate(texts) if text.endswith(".sh")
    ]
    first_flag = next(i for i, text in enumerate(texts) if setting_of_flag(text.partition("=")[0]))
    begin = next((i + 1 for i in scripts), first_flag)
    counts: dict[str, int] = {}
    for text, after in pairwise([*texts[:begin], ""]):
        flag, _, value = text.partition("=")
        if flag in _LAUNCHER_COUNTS and (value or after).isdigit():
            counts[_LAUNCHER_COUNTS[flag]] = int(value or after)
    return list(fields[begin:]), counts


def _all(outcomes: Iterable[bool | None]) -> bool | None:
    """Conjunction where None is undecided."""
    found = list(outcomes)
    return False if False in found else None if None in found else True


def _any(outcomes: Iterable[bool | None]) -> bool | None:
    """Disjunction where None is undecided."""
    found = list(outcomes)
    return True if True in found else None if None in found else False


def _cut(words: Sequence[str], separator: str) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word == separator:
            groups.append([])
        else:
            groups[-1].append(word)
    return groups


def _negatable(words: Sequence[str]) -> bool | None:
    if words[:1] != ["!"]:
        return _compare(words)
    outcome = _compare(words[1:])
    return None if outcome is None else not outcome


def _compare(words: Sequence[str]) -> bool | None:
    match words:
        case ["-n", text]:
            return text != ""
        case ["-z", text]:
            return text == ""
        case [text] if not text.startswith("-"):
            return text != ""
        case [left, "=" | "==", right]:
            return left == right if not set("*?[") & set(right) else None
        case [left, "!=", right]:
            return left != right if not set("*?[") & set(right) else None
        case [left, operator, right] if re.fullmatch(r"-?\d+", left) and re.fullmatch(r"-?\d+", right):
            a, b = int(left), int(right)
            outcomes = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}
            return outcomes.get(operator)
        case _:
            return None
