"""Reads a Bash launch script without running it.

Assignments, arrays, functions, `case`, counted loops and decidable `if` blocks are followed as Bash would, with the
caller's environment taken as empty and the script started without arguments, so `${TP:-8}` and `${1:-8}` are 8. Every
piece of the resulting command line remembers where in the file it was written. What cannot be known without running
(other commands' output, positional parameters) stays as written and is refused only where a setting needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from attune_lab.contracts import UserError
from attune_lab.recipe.bash_conditions import all_of, any_of, calculate, decide, only_guards, print_into, tested
from attune_lab.recipe.bash_launch import Found, Launcher, trains
from attune_lab.recipe.bash_parser import Case, Command, Function, Group, If, Loop, Node, parse, without_redirections
from attune_lab.recipe.bash_syntax import Token
from attune_lab.recipe.bash_values import (
    Expander,
    Scalar,
    Scope,
    included_text,
    one_command,
    relative_name,
    split,
    text_of,
    unknown_in,
)
from attune_lab.recipe.words import Launch, Region, line_of

_NOTHING = "no command passes a Megatron-LM flag such as --num-layers; give the script that starts training"
_MAX_SOURCED = 20
_MAX_CALLS = 20
_MAX_ROUNDS = 10_000
_PRINTERS = frozenset({"echo", "printf", "cat", "logger", ":", "true", "test", "[", "[["})
_SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})
_READ_SCRIPTS = _SHELLS | {"sbatch", "srun"}
_LEAVERS = frozenset({"exit", "return", "break", "continue"})


class _Leave(Exception):
    """``exit``, ``return``, ``break`` or ``continue`` at a place in the text."""

    def __init__(self, word: str, line: int) -> None:
        super().__init__(word)
        self.word, self.line = word, line


def read_bash(text: str, folder: Path | Mapping[str, str | None] | None = None) -> Launch:
    """The training command of a launch script and the environment it starts it in.

    Args:
        text: the script.
        folder: the script's own; `source` finds files in it and in the folder above, and leaves out what it does not
            find. Or what was found before (`Launch.included`), and then no other file may be named. None: no file.

    Raises:
        UserError: no or several training commands, something a setting depends on cannot be known, or a file included
            that may not be.
    """
    reader = _Reader(text, folder)
    end = ""
    try:
        reader.run(parse(text))
    except _Leave as leave:
        end = (
            f"line {leave.line}: the script stops there ('{leave.word}') when it is started as it is; give the "
            "variables it tests other values in the file"
        )
    if len(reader.found) > 1:
        first, second = (line_of(text, found.start) for found in reader.found[:2])
        raise UserError(f"lines {first} and {second} each start a training run; keep one of them in the file")
    if reader.found:
        return replace(Launcher(text, reader.scope).launch(reader.found[0]), included=reader.texts)
    raise UserError(reader.nothing_found() or end or _NOTHING)


class _Reader:
    def __init__(self, text: str, folder: Path | Mapping[str, str | None] | None) -> None:
        self.text = text
        self.folder = folder
        self.texts: dict[str, str | None] = {}
        self.scope = Scope()
        self.expander = Expander(text, self.scope, own=True)
        self.functions: dict[str, tuple[Node, ...]] = {}
        self.found: list[Found] = []
        self.included = 0
        self.calls = 0
        self.rounds = 0
        self.reparsed = False
        self.other_script: tuple[int, str] | None = None

    def run(self, nodes: Sequence[Node]) -> None:
        """Follow the nodes in order."""
        last: bool | None = True
        for node in nodes:
            if not isinstance(node, (Command, Group)):
                self._block(node)
                last = True
            elif (node.joiner == "&&" and last is False) or (node.joiner == "||" and last is True):
                continue
            elif node.joiner in ("&&", "||") and last is None:
                self._skip(node.tokens, f"behind a '{node.joiner}' whose test needs a run")
            elif isinstance(node, Group):
                self._group(node)
                last = True
            else:
                last = self._command(node)

    def nothing_found(self) -> str:
        """Where the training command is instead, '' where the script does not tell."""
        if self.other_script:
            line, name = self.other_script
            return f"line {line}: the training command is not here but in {name}; give that script"
        for name, value in self.scope.scalars.items():
            if any(trains(word) for word in text_of(value).split()) and (places := value[0].trail):
                where = f"line {line_of(self.text, places[-1].start)}" if places[-1].own else "an included file"
                return f"{where}: {name} holds flags of Megatron-LM but no command here uses them; add the command"
        return ""

    # Blocks

    def _block(self, node: If | Case | Loop | Function) -> None:
        if isinstance(node, If):
            self._run_if(node)
        elif isinstance(node, Case):
            self._run_case(node)
        elif isinstance(node, Loop):
            self._run_loop(node)
        else:
            self.functions[node.name] = node.body

    def _group(self, node: Group) -> None:
        try:
            self.run(node.body)
        except _Leave:
            if node.tokens[0].operator != "(":
                raise

    def _run_if(self, node: If) -> None:
        for condition, body in node.branches:
            outcome = self._holds(condition) if condition else True
            if outcome is None:
                self._skip(node.tokens, "inside an 'if' whose test needs a run", self._unknown(condition))
                return
            if outcome and not only_guards(self.expander, condition, body):
                self.run(body)
                return

    def _holds(self, condition: Sequence[Node]) -> bool | None:
        outcome: bool | None = None
        for node in condition:
            here = self._holds(node.body) if isinstance(node, Group) else None
            if isinstance(node, Command):
                here = tested(self.expander, node)
            joiner = node.joiner if isinstance(node, (Command, Group)) else ""
            outcome = {"&&": all_of, "||": any_of}.get(joiner, lambda pair: pair[1])((outcome, here))
        return outcome

    def _run_case(self, node: Case) -> None:
        subject = self.expander.chunks(node.subject.parts)
        if any(c.status == "dynamic" for c in subject):
            self._skip(node.tokens, "inside a 'case' whose word needs a run", unknown_in(subject))
            return
        word = "".join(c.text for c in subject if c.status != "unset")
        for patterns, body in node.branches:
            texts = [text_of(self.expander.chunks(pattern.parts)) for pattern in patterns]
            if any(decide([word, "==", text]) for text in texts):
                self.run(body)
                return

    def _run_loop(self, node: Loop) -> None:
        before = len(self.found)
        if node.kind == "for" and [p.kind for t in node.head[:1] for p in t.parts] == ["arith"]:
            rounds = self._counted(node)
        elif node.kind == "for":
            rounds = self._for_each(node)
        else:
            written = self.text[node.head[0].start : node.head[-1].end] if node.head else ""
            rounds = 0 if re.search(r"\$#|\$\{?1\b|\bgetopts?\b", written) else None
        if rounds is None:
            self._skip(node.tokens, f"inside '{node.kind}'")
        elif rounds > 1 and len(self.found) > before:
            line = line_of(self.text, node.tokens[0].start)
            raise UserError(f"line {line}: '{node.kind}' starts several training runs; keep one, outside of the loop")

    def _for_each(self, node: Loop) -> int | None:
        """Rounds of ``for NAME in words``; None where the words need a run."""
        fields = self.expander.all_fields(node.head[2:])
        if any(c.status == "dynamic" for field in fields for c in field):
            return None
        for done, field in enumerate(fields, 1):
            if not self._round(node, node.head[0].bare, field):
                return done
        return len(fields)

    def _counted(self, node: Loop) -> int | None:
        """Rounds of ``for ((i=0; i<n; i++))``; None where the bounds need a run."""
        first, test, step = (*node.head[0].parts[0].value.split(";"), "", "")[:3]
        rounds = 0
        if calculate(self.expander, first, node.head[0]) is None:
            return None
        while calculate(self.expander, test, node.head[0]):
            rounds += 1
            if not self._round(node):
                break
            calculate(self.expander, step, node.head[0])
        return rounds

    def _round(self, node: Loop, name: str = "", value: Scalar = ()) -> bool:
        """Run the body once; False where it breaks out of the loop."""
        self.rounds += 1
        if self.rounds > _MAX_ROUNDS:
            line = line_of(self.text, node.tokens[0].start)
            raise UserError(f"line {line}: the loops of the script run more than {_MAX_ROUNDS} rounds; write them out")
        if name:
            self.scope.scalars[name] = value
        try:
            self.run(node.body)
        except _Leave as leave:
            if leave.word not in ("continue", "break"):
                raise
            return leave.word == "continue"
        return True

    def _skip(self, tokens: Iterable[Token], where: str, unknown: str = "") -> None:
        """Pass over what cannot be decided: it may set variables, but must not hold flags we would miss."""
        for token in tokens:
            for word in (*(token.elements or ()), token):
                for piece in word.parts:
                    for flag in re.findall(r"(?<!\S)--[A-Za-z0-9_-]+", piece.value) if piece.kind == "text" else ():
                        if trains(flag):
                            raise UserError(
                                f"line {line_of(self.text, piece.start)}: {flag} stands {where}{unknown}; write the "
                                "flags of the run you mean outside of it"
                            )
            if assigned := token.assigned:
                self.scope.arrays.pop(assigned[1], None)
                self.scope.scalars[assigned[1]] = self.expander.dynamic(f"${assigned[1]}", token)

    def _unknown(self, condition: Sequence[Node]) -> str:
        """Names the variable that keeps a test from being decided."""
        tokens = [token for node in condition if isinstance(node, Command) for token in node.tokens]
        return next(filter(None, (unknown_in(self.expander.chunks(token.parts)) for token in tokens)), "")

    # Commands

    def _command(self, node: Command) -> bool | None:
        tokens = without_redirections(node.tokens)
        words = list(tokens)
        prefix: dict[str, tuple[Scalar, Region]] = {}
        while words and words[0].assigned:
            self._note_prefix(words.pop(0), prefix)
        if not words:
            for token in tokens:
                self._assign(token)
            return True
        name = words[0].bare
        if name in ("[", "[[", "test") or [p.kind for p in words[0].parts] == ["arith"]:
            return tested(self.expander, node)
        if name in _LEAVERS:
            raise _Leave(name, line_of(self.text, words[0].start))
        if not self._builtin(name, words):
            self._start(name, words, prefix, node)
        return True

    def _builtin(self, name: str, words: Sequence[Token]) -> bool:
        """Run a command of the shell itself; False for any other."""
        if name in ("export", "declare", "local", "readonly", "typeset"):
            self._export(words)
        elif name in ("source", "."):
            self._source(words)
        elif name == "unset":
            for word in words[1:]:
                self.scope.scalars.pop(word.bare, None)
                self.scope.arrays.pop(word.bare, None)
                self.scope.exported.pop(word.bare, None)
        elif name == "shift":
            self.scope.pass_arguments(self.scope.arrays["@"][1:])
        elif name == "printf" and len(words) > 3 and words[1].bare == "-v":
            print_into(self.expander, words)
        elif name == ":":
            for word in words[1:]:
                self.expander.fields(word)
        elif name not in self.functions:
            return name in _PRINTERS - {"cat"}
        else:
            self._call(name, words)
        return True

    def _start(self, name: str, words: list[Token], prefix: dict[str, tuple[Scalar, Region]], node: Command) -> None:
        """Start a program: a script given as text is followed, anything else may be the training command."""
        before = len(self.found)
        script = next((i for i, w in enumerate(words[1:], 1) if w.bare in ("-c", "-lc", "-xc", "-exc")), 0)
        writes_script = name == "cat" and re.search(r"\.(sh|slurm|sbatch)$", node.tokens[-1].bare)
        if node.heredocs and (name in _READ_SCRIPTS or writes_script):
            for start, end in node.heredocs:
                self.run(parse(self.text, start, end))
        elif script and len(words) > script + 1 and {w.bare for w in words[:script]} & _SHELLS:
            self._follow(words[script + 1])
        elif name == "eval" and len(words) == 2 and words[1].parts and all(p.quoted for p in words[1].parts):
            self._follow(words[1])
        elif name != "cat":
            self._consider(words, prefix, node)
        for i in range(before, len(self.found)):
            inner = self.found[i]
            self.found[i] = replace(inner, prefix={**prefix, **inner.prefix}, list_start=node.list_start)

    def _follow(self, word: Token) -> None:
        """Run a command given as text."""
        outer, self.reparsed = self.reparsed, True
        try:
            self.run(parse(self.text, word.parts[0].start, word.parts[-1].end))
        finally:
            self.reparsed = outer

    def _call(self, name: str, words: Sequence[Token]) -> None:
        """Run a function with its arguments in ``$1``, ``$2`` ... and ``$@``."""
        self.calls += 1
        if self.calls > _MAX_CALLS:
            line = line_of(self.text, words[0].start)
            raise UserError(f"line {line}: functions call each other without end; write the settings out")
        arguments = tuple(self.expander.all_fields(words[1:]))
        before, outer = len(self.found), self.scope.arrays["@"]
        self.scope.pass_arguments(arguments)
        try:
            self.run(self.functions[name])
        except _Leave as leave:
            if leave.word != "return":
                raise
        self.found[before:] = [replace(found, start=words[0].start) for found in self.found[before:]]
        self.calls -= 1
        self.scope.pass_arguments(outer)

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
            value = (*before_text, *self.expander.value(token, assigned.end()))
            self.scope.arrays.pop(name, None)
            self.scope.scalars[name] = value

    def _export(self, words: Sequence[Token]) -> None:
        exporting = words[0].bare == "export" or any(word.bare == "-x" for word in words)
        for word in words[1:]:
            name = word.assigned[1] if word.assigned else word.bare
            self._assign(word)
            if exporting and not name.startswith("-"):
                self.scope.exported[name] = self.expander.region(word.start, word.end, quoted=False)

    def _source(self, words: Sequence[Token]) -> None:
        """Include a file beside the script or one folder up; any other is left out, and missed where it is needed."""
        name = relative_name(self.expander.chunks(words[1].parts)) if len(words) > 1 else None
        if name is None:
            return
        here, before, text, expander = words[0].start, len(self.found), self.text, self.expander
        included = self.texts[name] = self._text_of(name, here)
        if included is None:
            return
        self.included += 1
        if self.included > _MAX_SOURCED:
            line = line_of(text, here)
            raise UserError(f"line {line}: files include each other without end; write the settings into one file")
        self.text = included
        self.expander = Expander(self.text, self.scope, own=False)
        try:
            self.run(parse(self.text))
        except UserError as error:
            raise UserError(f"{PurePath(name).name}, {error}") from None
        except _Leave as leave:
            if leave.word != "return":
                raise _Leave(leave.word, line_of(text, here)) from None
        finally:
            self.text, self.expander = text, expander
        if self.other_script:
            self.other_script = line_of(self.text, here), self.other_script[1]
        self.found[before:] = [replace(found, start=here, list_start=here) for found in self.found[before:]]

    def _text_of(self, name: str, here: int) -> str | None:
        if isinstance(self.folder, Path):
            return included_text(self.folder, name)
        if self.folder is not None and name not in self.folder:
            line = line_of(self.text, here)
            raise UserError(f"line {line}: it includes {name}, which the file as it came in does not; leave that out")
        return (self.folder or {}).get(name)

    def _consider(self, words: Sequence[Token], prefix: dict[str, tuple[Scalar, Region]], node: Command) -> None:
        fields = self.expander.all_fields(words)
        if words[0].bare == "eval":
            fields = [piece for field in fields for piece in split([replace(c, quoted=False) for c in field])]
        if self.reparsed or words[0].bare == "eval":
            fields = one_command(fields, trains)
        if any(trains(text_of(field)) for field in fields):
            self.found.append(Found(fields, prefix, words[0].start, node.list_start))
        elif script := next((text for field in fields if (text := text_of(field)).endswith(".sh")), None):
            self.other_script = line_of(self.text, words[0].start), script
