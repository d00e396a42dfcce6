"""Words of a Bash script with their places.

Nothing is expanded or executed here. What is outside the subset (command substitution, rare expansions) becomes an
opaque piece that keeps its place in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from attune_lab.contracts import UserError
from attune_lab.recipe.words import line_of

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#?])(\[(?:[@*]|\d{1,4})\])?(?:(:?[-=+?]|,,|\^\^)(.*))?", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ARITHMETIC = re.compile(r"\(\(((?:[^()]|\([^()]*\))*)\)\)")
_OPERATORS = (
    "|&",
    "&&",
    "||",
    ";;",
    "&>>",
    "&>",
    ">>",
    ">&",
    "<&",
    ">|",
    "<<<",
    "\n",
    ";",
    "&",
    "|",
    "(",
    ")",
    "<",
    ">",
)
REDIRECTIONS = frozenset({"<<", "&>>", "&>", ">>", ">&", "<&", ">|", "<<<", "<", ">"})
_MAX_DEPTH = 20
_MAX_WORDS = 100_000


@dataclass(frozen=True)
class Part:
    """A piece of a word.

    ``text``: ``value`` as it stands. ``ref``: variable ``value``; ``operator`` is what follows its name (``:-``,
    ``:=``, ``:+``, ``,,``, or ``#`` for a length) with the word in ``default``, ``index`` an array element; all of an
    array's elements when ``every``. ``arith``: the expression ``value``. ``opaque``: cannot be known statically.
    """

    kind: Literal["text", "ref", "arith", "opaque"]
    value: str
    start: int
    end: int
    quoted: bool
    default: tuple[Part, ...] | None = None
    every: bool = False
    operator: str = ""
    index: int | None = None


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


class Lexer:
    """Words of ``text[start:end]``; ``bodies`` gives the span of the here-document that each ``<<`` announces."""

    def __init__(self, text: str, start: int = 0, end: int | None = None) -> None:
        self.text = text if end is None else text[:end]
        self.position = start
        self.heredocs: list[tuple[int, str]] = []
        self.bodies: dict[int, tuple[int, int]] = {}

    def tokens(self) -> list[Token]:
        """All words and operators in order."""
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
            self.heredocs.append((start, heredoc[2]))
            self.position = heredoc.end()
            return Token(start, self.position, operator="<<")
        if match := _ARITHMETIC.match(text, start):
            self.position = match.end()
            return Token(start, self.position, (Part("arith", match[1], start, self.position, quoted=False),))
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
        for start, word in self.heredocs:
            end = re.compile(rf"^\t*{re.escape(word)}\r?$\n?", re.MULTILINE).search(self.text, self.position)
            self.bodies[start] = (self.position, end.start() if end else len(self.text))
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
        match = _BRACED.fullmatch(self.text[start + 2 : last])
        if not match or (match[1] and match[4]):
            return self._opaque(start, last, quoted=quoted)
        _, name, index, operator, _ = match.groups()
        default = None
        if operator and operator[-1] in "-=+":
            default = tuple(self._default_parts(start + 2 + match.start(5), last, quoted=quoted, depth=depth + 1))
        self.position = last + 1
        element = int(index[1:-1]) if index and index[1:-1].isdigit() else None
        every = bool(index and element is None) or name in "@*"
        return Part("ref", name, start, last + 1, quoted, default, every, match[1] or operator or "", element)

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

    def _matching(self, start: int, opening: str, closing: str, depth: int = 0) -> int:
        """Position of the bracket that closes the one at ``start``, quotes respected."""
        level, position, text = 0, start, self.text
        while position < len(text):
            char = text[position]
            if char == "\\":
                position += 1
            elif char == "'" and opening == "(":
                position = self._closing("'", position)
            elif char == '"' and opening == "(":
                position = self._string_end(position, depth)
            elif char == opening:
                level += 1
            elif char == closing:
                level -= 1
                if level == 0:
                    return position
            position += 1
        raise self._fail(start, f"'{opening}' is never closed")

    def _string_end(self, start: int, depth: int) -> int:
        """Position of the quote that closes the one at ``start``, the commands substituted inside respected."""
        if depth > _MAX_DEPTH:
            raise self._fail(start, "commands are nested too deeply; write the value out")
        position = start + 1
        while position < len(self.text) and self.text[position] != '"':
            if self.text.startswith("$(", position):
                position = self._matching(position + 1, "(", ")", depth + 1)
            position += 2 if self.text[position] == "\\" else 1
        if position >= len(self.text):
            raise self._fail(start, 'the quote " is never closed')
        return position
