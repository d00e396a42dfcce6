"""Outcomes of shell tests and arithmetic commands; what needs a run is None."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from attune_lab.recipe.arithmetic import evaluate
from attune_lab.recipe.bash_parser import Command, Node
from attune_lab.recipe.bash_syntax import Token
from attune_lab.recipe.bash_values import Chunk, Expander, Scalar, text_of

_ORDER: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """Conjunction where None is undecided."""
    found = list(outcomes)
    return False if False in found else None if None in found else True


def any_of(outcomes: Iterable[bool | None]) -> bool | None:
    """Disjunction where None is undecided."""
    found = list(outcomes)
    return True if True in found else None if None in found else False


def decide(words: Sequence[str]) -> bool | None:
    """Outcome of the words of a test, joined by ``&&`` and ``||`` (``-a`` and ``-o``); None when it needs a run."""
    joined = {"-a": "&&", "-o": "||"}
    words = [joined.get(word, word) if 0 < i < len(words) - 1 else word for i, word in enumerate(words)]
    return any_of(all_of(_negatable(test) for test in _cut(group, "&&")) for group in _cut(words, "||"))


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
        case [left, relation, right]:
            return _relation(left, relation, right)
        case _:
            return None


def _relation(left: str, relation: str, right: str) -> bool | None:
    if relation in ("=", "==", "!=") and "[" not in right:
        return fnmatchcase(left, right) == (relation != "!=")
    if relation == "=~" and re.fullmatch(r"\^?[\w./ -]+\$?", right):
        return re.search(right.replace(".", r"\."), left) is not None
    if not (relation in _ORDER and re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
        return None
    return _ORDER[relation](int(left), int(right))


def tested(expander: Expander, node: Command) -> bool | None:
    """Outcome of ``[ ... ]`` or ``(( ... ))``; None for any other command and for what needs a run."""
    first = node.tokens[0]
    if [p.kind for p in first.parts] == ["arith"]:
        value = calculate(expander, first.parts[0].value, first)
        outcome = None if value is None else bool(value)
    else:
        fields = [_test_word(expander, token) for token in node.tokens]
        texts = ["".join(c.text for c in field if c.status != "unset") for field in fields]
        if texts[0] not in ("[", "[[", "test") or any(c.status == "dynamic" for field in fields for c in field):
            return None
        outcome = decide(texts[1:] if texts[0] == "test" else texts[1:-1])
    return outcome if outcome is None else outcome != node.negated


def _test_word(expander: Expander, token: Token) -> Scalar:
    if token.operator:
        return (Chunk(token.operator, (), quoted=False),)
    return tuple(expander.chunks(token.parts))


def calculate(expander: Expander, expression: str, token: Token) -> int | None:
    """Value of an arithmetic command, which may assign to a variable of the scope; None when it needs a run."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))\s*", expression, re.DOTALL)
    if not match:
        return evaluate(expression, expander.number)
    name, step, sign, right = match.groups()
    if step:
        sign, right = step[0], "1"
    value = evaluate(f"{name} {sign} ({right})" if sign else right, expander.number)
    (unknown,) = expander.dynamic(f"${name}", token)
    known = unknown if value is None else replace(unknown, text=str(value), status="known")
    expander.scope.scalars[name] = (known,)
    return value


def print_into(expander: Expander, words: Sequence[Token]) -> None:
    """Do ``printf -v NAME FORMAT words`` for formats of plain text, %s and %d; else NAME is unknown."""
    form, *fields = (field for word in words[3:] for field in expander.fields(word))
    pieces = re.split(r"%[sd]", text_of(form))
    (value,) = expander.dynamic(f"${words[2].bare}", words[0])
    known = all(c.status == "known" for field in (form, *fields) for c in field)
    if known and len(pieces) == len(fields) + 1 and "%" not in "".join(pieces):
        text = pieces[0] + "".join(text_of(f) + piece for f, piece in zip(fields, pieces[1:], strict=True))
        value = replace(value, text=text, status="known")
    expander.scope.scalars[words[2].bare] = (value,)


def only_guards(expander: Expander, condition: Sequence[Node], body: Sequence[Node]) -> bool:
    """Whether an ``if`` only ends the script because the caller has set nothing."""
    last = body[-1] if body else None
    if not (isinstance(last, Command) and last.tokens[0].bare == "exit"):
        return False
    tokens = [token for node in condition if isinstance(node, Command) for token in node.tokens]
    refs = [part for token in tokens for part in token.parts if part.kind == "ref"]
    return any(not text_of(c for c in expander.chunks([ref]) if c.status == "known") for ref in refs)
