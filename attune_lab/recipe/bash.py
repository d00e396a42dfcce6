"""Reads a Bash launch script without running it.

Assignments, arrays and decidable `if` blocks are followed as Bash would, with the caller's environment taken as
empty, so `${TP:-8}` is 8. Every piece of the resulting command line remembers where in the file it was written. What
cannot be known without running (command substitution, positional parameters) stays as written and is refused only
where a setting needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from attune_lab.contracts import UserError
from attune_lab.recipe.bash_conditions import all_of, any_of, decide
from attune_lab.recipe.bash_syntax import REDIRECTIONS, Command, If, Node, Opaque, Token, parse
from attune_lab.recipe.bash_values import Chunk, Expander, Scalar, Scope, split, text_of
from attune_lab.recipe.registry import setting_of_flag
from attune_lab.recipe.text_files import read_text
from attune_lab.recipe.words import Launch, Region, Variable, Word, line_of

_MAX_SOURCED = 20
_PRINTERS = frozenset({"echo", "printf", "cat", "logger", ":", "true", "test", "[", "[["})
_LAUNCHER_COUNTS = {"--nnodes": "nnodes", "--nproc_per_node": "nproc_per_node", "--nproc-per-node": "nproc_per_node"}


@dataclass(frozen=True)
class _Found:
    """A command that passes Megatron-LM flags."""

    fields: list[Scalar]
    prefix: dict[str, tuple[Scalar, Region]]
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
        self.scope = Scope()
        self.expander = Expander(text, self.scope, own=True)
        self.found: list[_Found] = []
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
            outcome = {"&&": all_of, "||": any_of}.get(node.joiner, lambda pair: pair[1])((outcome, here))
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
                self.scope.scalars[assigned[1]] = self.expander.dynamic(f"${assigned[1]}", token)

    # Commands

    def _command(self, node: Command) -> bool | None:
        tokens = _without_redirections(node.tokens)
        words = list(tokens)
        prefix: dict[str, tuple[Scalar, Region]] = {}
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

    def _note_prefix(self, token: Token, prefix: dict[str, tuple[Scalar, Region]]) -> None:
        assigned = token.assigned
        if assigned and token.elements is None:
            value = self.expander.value(token, assigned.end())
            prefix[assigned[1]] = (value, self.expander.region(token.start, token.end, quoted=False))

    def _assign(self, token: Token) -> None:
        assigned = token.assigned
        if not assigned:
            return
        name, append = assigned[1], bool(assigned[2])
        if token.elements is not None:
            before = self.scope.arrays.get(name, ()) if append else ()
            fields = self.expander.all_fields(token.elements)
            self.scope.scalars.pop(name, None)
            self.scope.arrays[name] = (*before, *fields)
        else:
            before_text = self.scope.scalars.get(name, ()) if append else ()
            self.scope.arrays.pop(name, None)
            self.scope.scalars[name] = (*before_text, *self.expander.value(token, assigned.end()))

    def _export(self, words: Sequence[Token]) -> None:
        exporting = words[0].bare == "export" or any(word.bare == "-x" for word in words)
        for word in words[1:]:
            name = word.assigned[1] if word.assigned else word.bare
            self._assign(word)
            if exporting and not name.startswith("-"):
                self.scope.exported[name] = self.expander.region(word.start, word.end, quoted=False)

    def _source(self, words: Sequence[Token]) -> None:
        """Include a file of the script's own folder; others are left out, and miss where a setting needs them."""
        if len(words) < 2 or self.folder is None:
            return
        path = self._sourced(words[1])
        if path is None:
            return
        self.included += 1
        if self.included > _MAX_SOURCED:
            line = line_of(self.text, words[0].start)
            raise UserError(f"line {line}: files include each other without end; write the settings into one file")
        text, expander = self.text, self.expander
        self.text = read_text(path)
        self.expander = Expander(self.text, self.scope, own=False)
        try:
            self.run(parse(self.text))
        except UserError as error:
            raise UserError(f"{path.name}, {error}") from None
        finally:
            self.text, self.expander = text, expander

    def _sourced(self, word: Token) -> Path | None:
        """The file that `source` names, None when it is none of the script's own folder."""
        assert self.folder is not None
        written = "".join(chunk.text for chunk in self.expander.chunks(word.parts) if chunk.status != "dynamic")
        literal = not any(part.kind != "text" for part in word.parts)
        path = Path(written) if Path(written).is_absolute() and literal else self.folder / written.lstrip("/")
        try:
            path = path.resolve()
            return path if path.is_relative_to(self.folder.resolve()) and path.is_file() else None
        except (OSError, RuntimeError):  # a name too long, or links in a circle: nothing Bash could read either
            return None

    def _consider(self, words: Sequence[Token], prefix: dict[str, tuple[Scalar, Region]], node: Command) -> None:
        fields = self.expander.all_fields(words)
        texts = [text_of(field) for field in fields]
        if texts[:1] == ["eval"] or any(text in ("-c", "-lc") for text in texts):
            fields = [piece for field in fields for piece in split([replace(c, quoted=False) for c in field])]
        if any(setting_of_flag(text_of(field).partition("=")[0]) for field in fields):
            self.found.append(_Found(fields, prefix, words[0].start, node.list_start))

    def _test(self, node: Command) -> bool | None:
        """Outcome of ``[ ... ]``, None when it needs a run."""
        fields = [("".join(c.text for c in f if c.status != "unset"), f) for t in node.tokens for f in self._tested(t)]
        texts = [text for text, _ in fields]
        if not texts or texts[0] not in ("[", "[[", "test") or any(c.status == "dynamic" for _, f in fields for c in f):
            return None
        inner = texts[1:] if texts[0] == "test" else texts[1:-1]
        return decide(inner)

    def _tested(self, token: Token) -> list[Scalar]:
        if token.operator:
            return [(Chunk(token.operator, (), quoted=False),)]
        return [tuple(self.expander.chunks(token.parts))]

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
            name: text_of(value)
            for name, value in self.scope.scalars.items()
            if re.search(r"(?i)image", name) and text_of(value) and all(c.status == "known" for c in value)
        }
        return Launch(self.text, words, environment, launcher, found.list_start, images)

    def _word(self, index: int, scalar: Scalar, owners: dict[Region, set[int]], found: _Found) -> Word:
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
        return Word(text_of(scalar), line, regions, all(c.status == "known" for c in scalar))

    def _alone(self, trail: tuple[Region, ...]) -> bool:
        """The innermost region can be edited: every variable on the way to it is used nowhere else."""
        names = [region.name for region in trail[:-1] if region.name]
        return all(_uses(self.text, name) <= 1 and name not in self.scope.exported for name in names)

    def _variable(self, value: Scalar, statement: Region) -> Variable:
        regions: tuple[Region, ...] = ()
        if value:
            common = [r for r in value[0].trail if all(r in c.trail for c in value)]
            regions = tuple(r for i, r in enumerate(common) if r.own and self._alone(tuple(common[: i + 1])))
        return Variable(text_of(value), regions, statement)


def _uses(text: str, name: str) -> int:
    """How often a variable is mentioned beyond its one definition (and the `${NAME:-...}` inside it)."""
    mentions = len(re.findall(rf"\b{re.escape(name)}\b", text))
    definitions = len(re.findall(rf"(?m)(?:^|[\s;]){re.escape(name)}=", text))
    defaulted = len(re.findall(rf"\b{re.escape(name)}=[\"']?\$\{{{re.escape(name)}:?-", text))
    return mentions - 1 - defaulted if definitions == 1 else mentions


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


def _without_launcher(fields: Sequence[Scalar]) -> tuple[list[Scalar], dict[str, int]]:
    """The arguments after the training program, and the counts of nodes and processes before it."""
    texts = [text_of(field) for field in fields]
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
