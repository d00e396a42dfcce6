"""The part of Bash that launch scripts are written in, as syntax: words with their places, commands, blocks.

Nothing is expanded or executed here. Constructs outside the subset (command substitution, `case`, loops, functions)
become opaque pieces that keep their place in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from attune_lab.contracts import UserError
from attune_lab.recipe.words import line_of

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BRACED = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?])(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_OPERATORS = ("&&", "||", ";;", "&>>", "&>", ">>", ">&", "<&", ">|", "<<<", "\n", ";", "&", "|", "(", ")", "<", ">")
REDIRECTIONS = frozenset({"&>>", "&>", ">>", ">&", "<&", ">|", "<<<", "<", ">"})
_MAX_DEPTH = 20
_MAX_WORDS = 100_000


@dataclass(frozen=True)
class Part:
    """A piece of a word.

    ``text``: ``value`` as it stands. ``ref``: variable ``value`` with its ``default`` (None without one), all of an
    array's elements when ``every``. ``arith``: the expression ``value``. ``opaque``: cannot be known statically.
    """

    kind: Literal["text", "ref", "arith", "opaque"]
    value: str
    start: int
    end: int
    quoted: bool
    default: tuple[Part, ...] | None = None
    every: bool = False


@dataclass(frozen=True)
class Token:
    """A word, an operator or an array assignment (``elements`` is not None)."""

    start: int
    end: int
    parts: tuple[Part, ...] = ()
    operator: str = ""
    elements: tuple[Token, ...] | None = None

    @property
    def bare(self) -> str:
        """The text of a word written without quotes or variables, else ''."""
        if self.operator or len(self.parts) != 1 or self.parts[0].kind != "text" or self.parts[0].quoted:
            return ""
        return self.parts[0].value

    @property
    def assigned(self) -> re.Match[str] | None:
        """The ``NAME=`` or ``NAME+=`` this word begins with."""
        first = self.parts[0] if self.parts else None
        return _ASSIGNED.match(first.value) if first and first.kind == "text" and not first.quoted else None


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.heredocs: list[str] = []

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while (token := self._next()) is not None:
            found.append(token)
            if len(found) > _MAX_WORDS:
                raise UserError(f"the script has more than {_MAX_WORDS} words; a launch script has a few hundred")
        return found

    def _fail(self, position: int, message: str) -> UserError:
        return UserError(f"line {line_of(self.text, position)}: {message}")

    def _next(self) -> Token | None:
        self._skip_blank()
        text, start = self.text, self.position
        if start >= len(text):
            return None
        if heredoc := _HEREDOC.match(text, start):
            self.heredocs.append(heredoc[2])
            self.position = heredoc.end()
            return self._next()
        for operator in _OPERATORS:
            if text.startswith(operator, start) and not text.startswith(("<(", ">("), start):
                self.position = start + len(operator)
                if operator == "\n" and self.heredocs:
                    self._skip_heredocs()
                return Token(start, self.position, operator=operator)
        parts = self._word_parts()
        token = Token(start, self.position, tuple(parts))
        assigned = token.assigned
        if assigned and assigned.end() == self.position - start and text.startswith("(", self.position):
            return self._array(token)
        return token

    def _skip_blank(self) -> None:
        text = self.text
        while self.position < len(text):
            if match := re.compile(r"[^\S\n]+|\\\r?\n|#[^\n]*").match(text, self.position):
                self.position = match.end()
            else:
                return

    def _skip_heredocs(self) -> None:
        for word in self.heredocs:
            end = re.compile(rf"^\t*{re.escape(word)}\r?$\n?", re.MULTILINE).search(self.text, self.position)
            self.position = end.end() if end else len(self.text)
        self.heredocs = []

    def _array(self, name: Token) -> Token:
        self.position += 1
        elements: list[Token] = []
        while (token := self._next()) is not None:
            if token.operator == ")":
                return Token(name.start, token.end, name.parts, elements=tuple(elements))
            if token.operator not in ("", "\n"):
                raise self._fail(token.start, f"'{token.operator}' cannot stand in an array; quote it")
            if not token.operator:
                elements.append(token)
        raise self._fail(name.start, "the array is never closed; add the missing ')'")

    def _word_parts(self) -> list[Part]:
        parts: list[Part] = []
        text = self.text
        plain = re.compile(r"[^\s\\'\"$`;&|()<>]+")
        while self.position < len(text):
            start, char = self.position, text[self.position]
            if len(parts) > _MAX_WORDS:
                raise self._fail(start, f"a word of more than {_MAX_WORDS} pieces is no part of a launch script")
            if match := plain.match(text, start):
                self.position = match.end()
                parts.append(Part("text", match[0], start, match.end(), quoted=False))
            elif char == "\\":
                if match := re.compile(r"\\\r?\n").match(text, start):
                    self.position = match.end()
                    if not parts:
                        break
                    continue
                self.position = min(start + 2, len(text))
                parts.append(Part("text", text[start + 1 : start + 2], start, self.position, quoted=False))
            elif char == "'":
                end = self._closing("'", start)
                parts.append(Part("text", text[start + 1 : end], start + 1, end, quoted=True))
                self.position = end + 1
            elif char == '"':
                self.position += 1
                parts += self._double_quoted(start)
            elif char in "$`":
                parts.append(self._dollar(quoted=False, depth=0))
            elif text.startswith(("<(", ">("), start):
                parts.append(self._opaque(start, self._matching(start + 1, "(", ")"), quoted=False))
            else:
                break
        return parts

    def _closing(self, quote: str, start: int) -> int:
        end = self.text.find(quote, start + 1)
        if end < 0:
            raise self._fail(start, f"the quote {quote} is never closed")
        return end

    def _double_quoted(self, opening: int, depth: int = 0) -> list[Part]:
        parts: list[Part] = []
        plain = re.compile(r'[^\\"$`]+')
        text = self.text
        while self.position < len(text):
            start, char = self.position, text[self.position]
            if match := plain.match(text, start):
                self.position = match.end()
                parts.append(Part("text", match[0], start, match.end(), quoted=True))
            elif char == '"':
                self.position += 1
                return parts or [Part("text", "", start, start, quoted=True)]
            elif char == "\\":
                match = re.compile(r"\\(\r?\n|.)", re.DOTALL).match(text, start)
                self.position = match.end() if match else len(text)
                escaped = match[1] if match else ""
                value = "" if escaped.endswith("\n") else escaped if escaped in '"$`\\' else "\\" + escaped
                parts.append(Part("text", value, start, self.position, quoted=True))
            else:
                parts.append(self._dollar(quoted=True, depth=depth))
        raise self._fail(opening, 'the quote " is never closed')

    def _dollar(self, *, quoted: bool, depth: int) -> Part:
        text, start = self.text, self.position
        if depth > _MAX_DEPTH:
            raise self._fail(start, "variables are nested too deeply; write the value out")
        if text[start] == "`":
            return self._opaque(start, self._closing("`", start), quoted=quoted)
        if text.startswith("$((", start) and (
            match := re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)").match(text, start)
        ):
            self.position = match.end()
            return Part("arith", match[1], start, match.end(), quoted)
        if text.startswith("$(", start):
            return self._opaque(start, self._matching(start + 1, "(", ")"), quoted=quoted)
        if text.startswith("${", start):
            return self._braced(start, quoted=quoted, depth=depth)
        if match := re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])").match(text, start):
            self.position = match.end()
            return Part("ref", match[1], start, match.end(), quoted, every=match[1] in "@*")
        self.position += 1
        return Part("text", "$", start, start + 1, quoted)

    def _opaque(self, start: int, last: int, *, quoted: bool) -> Part:
        self.position = last + 1
        return Part("opaque", self.text[start : last + 1], start, last + 1, quoted)

    def _braced(self, start: int, *, quoted: bool, depth: int) -> Part:
        last = self._matching(start + 1, "{", "}")
        inner = self.text[start + 2 : last]
        match = _BRACED.fullmatch(inner)
        if not match:
            return self._opaque(start, last, quoted=quoted)
        default = None
        if match[3]:
            default = tuple(self._default_parts(start + 2 + match.start(4), last, quoted=quoted, depth=depth + 1))
        self.position = last + 1
        return Part("ref", match[1], start, last + 1, quoted, default, every=bool(match[2]) or match[1] in "@*")

    def _default_parts(self, start: int, end: int, *, quoted: bool, depth: int) -> list[Part]:
        """The word after ``:-``, which ends at the brace and not at a blank."""
        parts: list[Part] = []
        self.position = start
        plain = re.compile(r"[^\\'\"$`]+")
        while self.position < end:
            at, char = self.position, self.text[self.position]
            if match := plain.match(self.text, at, end):
                self.position = match.end()
                parts.append(Part("text", match[0], at, match.end(), quoted))
            elif char == '"':
                self.position += 1
                parts += self._double_quoted(at, depth)
            elif char == "'" and not quoted:
                close = self._closing("'", at)
                parts.append(Part("text", self.text[at + 1 : close], at + 1, close, quoted=True))
                self.position = close + 1
            elif char in "$`":
                parts.append(self._dollar(quoted=quoted, depth=depth))
            else:
                self.position += 1
                parts.append(Part("text", char, at, at + 1, quoted))
        return parts

    def _matching(self, start: int, opening: str, closing: str) -> int:
        """Position of the bracket that closes the one at ``start``, quotes respected."""
        level, position, text = 0, start, self.text
        while position < len(text):
            char = text[position]
            if char == "\\":
                position += 1
            elif char == "'" and opening == "(":
                position = self._closing("'", position)
            elif char == opening:
                level += 1
            elif char == closing:
                level -= 1
                if level == 0:
                    return position
            position += 1
        raise self._fail(start, f"'{opening}' is never closed")


@dataclass(frozen=True)
class Command:
    """A simple command. ``joiner``: the operator before it (``&&``, ``||``, ``|`` or '')."""

    tokens: tuple[Token, ...]
    joiner: str
    list_start: int


@dataclass(frozen=True)
class If:
    """Branches of (condition, body); the condition of ``else`` is empty. ``tokens``: all of it, as written."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    tokens: tuple[Token, ...]
    start: int


@dataclass(frozen=True)
class Opaque:
    """A loop, ``case`` or function: its words are seen, its meaning is not."""

    kind: str
    tokens: tuple[Token, ...]
    start: int


Node = Command | If | Opaque
_OPAQUE_ENDS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "function": "}"}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _Lexer(text).tokens()
        self.index = 0

    def block(self, stops: frozenset[str], depth: int = 0) -> list[Node]:
        """Nodes up to a reserved word of ``stops`` (not consumed) or the end."""
        if depth > _MAX_DEPTH:
            raise UserError(f"line {self._line()}: blocks are nested too deeply; write the script flatter")
        nodes: list[Node] = []
        joiner, list_start = "", None
        while self.index < len(self.tokens):
            token = self.tokens[self.index]
            if token.operator or (token.bare in ("{", "}", "then", "do", "!", "time") and token.bare not in stops):
                self.index += 1
                joiner = token.operator if token.operator in ("&&", "||", "|") else joiner
                if token.operator in ("\n", ";", "&") and joiner not in ("&&", "||", "|"):
                    list_start = None
                continue
            if token.bare in stops:
                return nodes
            list_start = token.start if list_start is None else list_start
            nodes.append(self._node(token, joiner, list_start, depth))
            joiner = ""
        if stops:
            raise UserError(f"line {self._line()}: the block is never closed; add the missing '{sorted(stops)[-1]}'")
        return nodes

    def _line(self) -> int:
        return line_of(self.text, self.tokens[min(self.index, len(self.tokens) - 1)].start)

    def _node(self, token: Token, joiner: str, list_start: int, depth: int) -> Node:
        if token.bare == "if":
            return self._if(depth)
        if token.bare in _OPAQUE_ENDS:
            return self._opaque(token.bare, _OPAQUE_ENDS[token.bare])
        after = self.tokens[self.index + 1 : self.index + 3]
        if _NAME.fullmatch(token.bare) and [t.operator for t in after] == ["(", ")"]:
            return self._opaque("function", "}")
        first = self.index
        while self.index < len(self.tokens):
            operator = self.tokens[self.index].operator
            inside_test = token.bare == "[[" and self.tokens[self.index - 1].bare != "]]"
            if operator and operator not in REDIRECTIONS and not inside_test:
                break
            self.index += 1
        return Command(tuple(self.tokens[first : self.index]), joiner, list_start)

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
                return If(tuple(branches), tuple(self.tokens[first : self.index]), self.tokens[first].start)

    def _opaque(self, kind: str, end: str) -> Opaque:
        first, level = self.index, 0
        openers = {"done": {"for", "while", "until", "select"}, "esac": {"case"}, "}": {"{"}}[end]
        while self.index < len(self.tokens):
            bare = self.tokens[self.index].bare
            self.index += 1
            level += (bare in openers) - (bare == end)
            if bare == end and level == 0:
                return Opaque(kind, tuple(self.tokens[first : self.index]), self.tokens[first].start)
        raise UserError(f"line {line_of(self.text, self.tokens[first].start)}: '{kind}' is never closed by '{end}'")


def parse(text: str) -> list[Node]:
    """The script's commands and blocks in order.

    Raises:
        UserError: an unclosed quote, bracket or block, with its line.
    """
    return _Parser(text).block(frozenset())
