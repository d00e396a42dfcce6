"""Commands and blocks of a Bash script, from its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from attune_lab.contracts import UserError
from attune_lab.recipe.bash_syntax import REDIRECTIONS, Lexer, Token
from attune_lab.recipe.words import line_of

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_MAX_DEPTH = 20


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        tokens: its words and redirections.
        joiner: the operator before it (``&&``, ``||``, ``|`` or '').
        list_start: where the list of joined commands begins.
        negated: a ``!`` stands before it.
        heredocs: spans of the here-documents it reads.
    """

    tokens: tuple[Token, ...]
    joiner: str
    list_start: int
    negated: bool = False
    heredocs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Group:
    """``{ ... }`` or ``( ... )``."""

    body: tuple[Node, ...]
    joiner: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class If:
    """Branches of (condition, body); the condition of ``else`` is empty. ``tokens``: all of it, as written."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Case:
    """``case subject in``: branches of (patterns, body)."""

    subject: Token
    branches: tuple[tuple[tuple[Token, ...], tuple[Node, ...]], ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Loop:
    """``for``, ``while`` or ``until``: its head is the words up to ``do``."""

    kind: str
    head: tuple[Token, ...]
    body: tuple[Node, ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Function:
    """A function and what a call of it does."""

    name: str
    body: tuple[Node, ...]


Node: TypeAlias = Command | Group | If | Case | Loop | Function
_LOOPS = frozenset({"for", "while", "until", "select"})


def parse(text: str, start: int = 0, end: int | None = None) -> list[Node]:
    """The commands and blocks of ``text[start:end]`` in order, with places in ``text``.

    Raises:
        UserError: an unclosed quote, bracket or block, with its line.
    """
    return _Parser(text, start, end).block(frozenset())


class _Parser:
    def __init__(self, text: str, start: int, end: int | None) -> None:
        self.text = text
        lexer = Lexer(text, start, end)
        self.tokens = lexer.tokens()
        self.bodies = lexer.bodies
        self.index = 0

    def block(self, stops: frozenset[str], depth: int = 0) -> list[Node]:
        """Nodes up to a word or operator of ``stops`` (not consumed) or the end."""
        if depth > _MAX_DEPTH:
            raise UserError(f"line {self._line()}: blocks are nested too deeply; write the script flatter")
        nodes: list[Node] = []
        joiner, list_start, negated = "", None, False
        while self.index < len(self.tokens):
            token = self.tokens[self.index]
            if (token.operator or token.bare) in stops:
                return nodes
            if token.operator and token.operator != "(":
                self.index += 1
                joiner = token.operator[:2].replace("|&", "|") if token.operator in ("&&", "||", "|", "|&") else joiner
                if token.operator in ("\n", ";", "&") and not joiner:
                    list_start = None
                continue
            if token.bare in ("then", "do", "!", "time", "}"):
                self.index += 1
                negated ^= token.bare == "!"
                continue
            list_start = token.start if list_start is None else list_start
            node = self._node(token, joiner, list_start, depth)
            nodes.append(replace(node, negated=True) if negated and isinstance(node, Command) else node)
            joiner, negated = "", False
        if stops:
            raise UserError(f"line {self._line()}: the block is never closed; add the missing '{sorted(stops)[-1]}'")
        return nodes

    def _line(self) -> int:
        return line_of(self.text, self.tokens[min(self.index, len(self.tokens) - 1)].start)

    def _node(self, token: Token, joiner: str, list_start: int, depth: int) -> Node:
        blocks: dict[str, Callable[[int], Node]] = {"if": self._if, "case": self._case}
        if token.bare in blocks:
            return blocks[token.bare](depth)
        if token.bare in _LOOPS:
            return self._loop(depth)
        if token.bare == "{" or token.operator == "(":
            first = self.index
            body = self._braced(depth)
            return Group(body, joiner, tuple(self.tokens[first : self.index]))
        after = self.tokens[self.index + 1 : self.index + 3]
        if token.bare == "function" and after:
            return self._function(after[0].bare, 2, depth)
        if _NAME.fullmatch(token.bare) and [t.operator for t in after] == ["(", ")"]:
            return self._function(token.bare, 1, depth)
        return self._command(token, joiner, list_start)

    def _command(self, token: Token, joiner: str, list_start: int) -> Command:
        first = self.index
        while self.index < len(self.tokens):
            operator = self.tokens[self.index].operator
            inside_test = token.bare == "[[" and self.tokens[self.index - 1].bare != "]]"
            if operator and operator not in REDIRECTIONS and not inside_test:
                break
            self.index += 1
        tokens = tuple(self.tokens[first : self.index])
        heredocs = tuple(self.bodies[t.start] for t in tokens if t.operator == "<<" and t.start in self.bodies)
        return Command(tokens, joiner, list_start, heredocs=heredocs)

    def _braced(self, depth: int) -> tuple[Node, ...]:
        """The nodes of a group whose opening bracket comes next."""
        opening = self.tokens[self.index]
        self.index += 1
        body = self.block(frozenset({"}" if opening.bare == "{" else ")"}), depth + 1)
        self.index += 1
        return tuple(body)

    def _function(self, name: str, words: int, depth: int) -> Function:
        self.index += words
        while self.index < len(self.tokens) and self.tokens[self.index].operator in ("\n", "(", ")"):
            self.index += 1
        if self.index >= len(self.tokens) or self.tokens[self.index].bare != "{":
            raise UserError(f"line {self._line()}: function {name} has no body in braces; add it")
        return Function(name, self._braced(depth))

    def _if(self, depth: int) -> If:
        first = self.index
        branches: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        self.index += 1
        while True:
            condition = tuple(self.block(frozenset({"then"}), depth + 1))
            self.index += 1
            body = tuple(self.block(frozenset({"elif", "else", "fi"}), depth + 1))
            branches.append((condition, body))
            word = self.tokens[self.index].bare
            self.index += 1
            if word == "else":
                branches.append(((), tuple(self.block(frozenset({"fi"}), depth + 1))))
                self.index += 1
            if word != "elif":
                return If(tuple(branches), tuple(self.tokens[first : self.index]))

    def _case(self, depth: int) -> Case:
        first = self.index
        branches: list[tuple[tuple[Token, ...], tuple[Node, ...]]] = []
        subject = self.tokens[min(self.index + 1, len(self.tokens) - 1)]
        self.index += 2
        while self.index < len(self.tokens):
            token = self.tokens[self.index]
            if token.bare == "esac":
                self.index += 1
                return Case(subject, tuple(branches), tuple(self.tokens[first : self.index]))
            self.index += 1
            if token.operator in ("\n", ";;", "(") or (token.bare == "in" and not branches):
                continue
            patterns = [token]
            while self.index < len(self.tokens) and self.tokens[self.index].operator != ")":
                patterns += [] if self.tokens[self.index].operator else [self.tokens[self.index]]
                self.index += 1
            self.index += 1
            branches.append((tuple(patterns), tuple(self.block(frozenset({";;", "esac"}), depth + 1))))
        raise UserError(f"line {line_of(self.text, subject.start)}: 'case' is never closed by 'esac'")

    def _loop(self, depth: int) -> Loop:
        first = self.index
        while self.index < len(self.tokens) and self.tokens[self.index].bare != "do":
            self.index += 1
        head = tuple(token for token in self.tokens[first + 1 : self.index] if token.operator not in ("\n", ";"))
        self.index += 1
        if self.index > len(self.tokens):
            raise UserError(f"line {line_of(self.text, self.tokens[first].start)}: the loop has no 'do'; add it")
        body = tuple(self.block(frozenset({"done"}), depth + 1))
        self.index += 1
        return Loop(self.tokens[first].bare, head, body, tuple(self.tokens[first : self.index]))


def without_redirections(tokens: Sequence[Token]) -> list[Token]:
    """The words of a command."""
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
