"""Recipes as YAML: environment variables in `ENV_VARS` and flags in a second part such as `MODEL_ARGS`.

The values are found by their places in the text and edited there, so that everything else keeps its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from attune_lab.contracts import UserError
from attune_lab.recipe.megatron import Interpreted, flag_words
from attune_lab.recipe.recipe import Value
from attune_lab.recipe.registry import registry, setting_of_flag, spelling_of_flag
from attune_lab.recipe.words import Edit, Launch, Region, Variable, Word, apply_edits, line_of, line_span, newline_of

_ENVIRONMENT = "ENV_VARS"
_MAX_CHARACTERS = 300_000
_MAX_DEPTH = 20
_REFERENCE = re.compile(r"\$\{(\w+)(?::-([^${}]*))?\}|\$([A-Za-z_]\w*)")
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})


@dataclass(frozen=True)
class _Entry:
    """One ``key: value`` line, all of it in `line`; ``values`` are the scalars with their places."""

    key: str
    values: tuple[tuple[str, Region], ...]
    line: Region


def read_yaml(text: str) -> Launch:
    """The flags and the environment of a YAML recipe.

    Raises:
        UserError: not YAML, no part with flags, or a construct that a recipe has no use for (anchors, tags, nesting).
    """
    parts = _parts(text)
    environment = {
        entry.key: Variable(_joined(entry), tuple(r for _, r in entry.values), entry.line)
        for entry in parts.get(_ENVIRONMENT, ())
    }
    flags = [entry for name, part in parts.items() if name != _ENVIRONMENT for entry in part if entry.key[:2] == "--"]
    if not any(setting_of_flag(entry.key) for entry in flags):
        raise UserError("no part of the file holds Megatron-LM flags such as --num-layers; give the recipe's YAML")
    values = {name: variable.value for name, variable in environment.items()}
    words = tuple(word for entry in flags for word in _words(text, entry, values))
    return Launch(text, words, environment)


def edited(
    launch: Launch, interpreted: Interpreted, settings: Mapping[str, Value], environment: Mapping[str, str | None]
) -> str:
    """The text with settings and environment variables changed; None removes one."""
    text = launch.text
    parts = _parts(text)
    edits: list[Edit] = []
    for key, value in settings.items():
        words = () if value is None else flag_words(key, value)
        old = [o.flag.text for o in interpreted.occurrences.get(key, ())]
        flag = words[0] if words else ""
        new = "true" if len(words) == 1 else " ".join(words[1:])
        edits += [edit for name in dict.fromkeys((*old, flag)) for edit in _changed(text, parts, name, flag, new)]
        if words and flag not in {entry.key for name, part in parts.items() for entry in part}:
            edits.append(_added(text, parts, registry()[key].group, f"{flag}: {_scalar(new)}"))
    for name, text_value in environment.items():
        entry = next((e for e in parts.get(_ENVIRONMENT, ()) if e.key == name), None)
        if entry is None and text_value is not None:
            edits.append(_new_variable(text, parts, f"{name}: {_scalar(text_value)}"))
        elif entry is not None:
            edits.append(_line_edit(text, entry, None if text_value is None else text_value))
    return apply_edits(text, edits)


def _changed(text: str, parts: Mapping[str, list[_Entry]], name: str, flag: str, new: str) -> Iterator[Edit]:
    for part in parts.values():
        for entry in part:
            if entry.key == name:
                yield _line_edit(text, entry, new if name == flag else None)


def _line_edit(text: str, entry: _Entry, value: str | None) -> Edit:
    """Replace an entry's value, or cut its lines where ``value`` is None."""
    if value is None:
        start, _ = line_span(text, entry.line.start)
        _, end = line_span(text, max(entry.line.end - 1, entry.line.start))
        return Edit(start, end, "")
    first = entry.values[0][1].start if entry.values else entry.line.end
    return Edit(first, entry.line.end, _scalar(value) if entry.values else " " + _scalar(value))


def _added(text: str, parts: Mapping[str, list[_Entry]], group: str, line: str) -> Edit:
    """A new flag line before the last flag of its group."""
    entries = [e for name, part in parts.items() if name != _ENVIRONMENT for e in part if setting_of_flag(e.key)]

    def related(entry: _Entry) -> bool:
        setting = setting_of_flag(entry.key)
        return setting is not None and setting.group == group

    anchor = max(entries, key=lambda e: (related(e), e.line.start))
    return _before(text, anchor, line)


def _new_variable(text: str, parts: Mapping[str, list[_Entry]], line: str) -> Edit:
    entries = parts.get(_ENVIRONMENT)
    if entries:
        return _before(text, entries[-1], line)
    new = newline_of(text)
    first = next(iter(part[0] for part in parts.values() if part))
    header = text.rfind("\n", 0, line_span(text, first.line.start)[0] - 1) + 1
    return Edit(header, header, f"{_ENVIRONMENT}:{new}  {line}{new}")


def _before(text: str, entry: _Entry, line: str) -> Edit:
    start, _ = line_span(text, entry.line.start)
    return Edit(start, start, f"{text[start : entry.line.start]}{line}{newline_of(text)}")


def _scalar(value: str) -> str:
    """A YAML scalar that reads back as the same text."""
    if re.fullmatch(r"[A-Za-z0-9_./$+-][A-Za-z0-9_./${}+=,:()*-]*", value) and not value.endswith(":"):
        return value
    return "'" + value.replace("'", "''") + "'"


def _parts(text: str) -> dict[str, list[_Entry]]:
    """Top-level mappings by name, each a list of entries."""
    if len(text) > _MAX_CHARACTERS:
        raise UserError(f"the YAML is longer than {_MAX_CHARACTERS} characters; a recipe has a few hundred lines")
    root = _composed(text)
    if not isinstance(root, MappingNode):
        raise UserError("line 1: a YAML recipe is a mapping with a part for flags such as MODEL_ARGS")
    parts: dict[str, list[_Entry]] = {}
    for key, node in root.value:
        _refuse_nested(key)
        if isinstance(node, MappingNode):
            if key.value in parts:
                raise UserError(f"line {_line(key)}: '{key.value}' stands twice; merge the two")
            parts[key.value] = _entries(text, node)
    return parts


def _composed(text: str) -> Node | None:
    yaml = YAML(typ="rt", pure=True)
    try:
        depth = 0
        for token in yaml.scan(text):
            kind, line = type(token).__name__, token.start_mark.line + 1
            depth += kind.endswith("StartToken") - kind.endswith("EndToken")
            if depth > _MAX_DEPTH:
                raise UserError(f"line {line}: this YAML is nested too deeply for a recipe; write flags and values")
            if kind in ("AnchorToken", "AliasToken", "TagToken"):
                raise UserError(f"line {line}: anchors, aliases and tags are not read in a recipe; write the value out")
        node: Node | None = YAML(typ="rt", pure=True).compose(text)
    except (YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "nested too deeply"
        line = mark.line + 1 if mark else 1
        raise UserError(f"line {line}: this is not valid YAML ({problem}); correct it there") from None
    return node


def _entries(text: str, mapping: MappingNode) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for key, node in mapping.value:
        _refuse_nested(key)
        if key.value in entries:
            first = line_of(text, entries[key.value].line.start)
            raise UserError(f"lines {first} and {_line(key)} both set '{key.value}'; keep one of them")
        scalars = node.value if isinstance(node, SequenceNode) else [node]
        if not all(isinstance(scalar, ScalarNode) for scalar in scalars):
            raise UserError(f"line {_line(key)}: the value of '{key.value}' is nested; write one value or a list")
        places = tuple((s.value, _region(text, s)) for s in scalars if s.end_mark.index > s.start_mark.index)
        end = _end(text, node) if places else key.end_mark.index + 1
        if isinstance(node, SequenceNode) and places:
            places = ((places[0][0], Region(node.start_mark.index, places[0][1].end)), *places[1:])
        entries[key.value] = _Entry(key.value, places, Region(key.start_mark.index, end))
    return list(entries.values())


def _refuse_nested(key: Node) -> None:
    if not isinstance(key, ScalarNode):
        raise UserError(f"line {_line(key)}: a name cannot be a list or a mapping; write a flag")


def _region(text: str, scalar: ScalarNode) -> Region:
    return Region(scalar.start_mark.index, _end(text, scalar))


def _end(text: str, node: Node) -> int:
    """Where a node ends, without the blanks and comments the parser may count to it."""
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(text, node.value[-1])
    start: int = node.start_mark.index
    return start + len(text[start : node.end_mark.index].rstrip())


def _line(node: Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _joined(entry: _Entry) -> str:
    return " ".join(value for value, _ in entry.values)


def _words(text: str, entry: _Entry, variables: Mapping[str, str]) -> list[Word]:
    """The words of one flag: none for `false`, the flag alone for `true` or nothing."""
    line = line_of(text, entry.line.start)
    flag = Word(entry.key, line, (entry.line,))
    found = [_resolved(value, variables) for value, _ in entry.values]
    only = found[0][0].lower() if len(found) == 1 else ""
    if only in _FALSE:
        return []
    if not found or only in _TRUE:
        return [flag]
    spelling = spelling_of_flag(entry.key)
    if spelling and spelling.arity == "constant" and not all(known for _, known in found):
        raise UserError(
            f"line {line}: {entry.key} is {found[0][0]}, which is not set in this file; write true or false"
        )
    return [flag, *(Word(piece, line, (), known) for value, known in found for piece in value.split() or [""])]


def _resolved(value: str, variables: Mapping[str, str]) -> tuple[str, bool]:
    """``value`` with `${NAME}` replaced from the environment part, and whether all of it is known."""
    known = True

    def replacement(match: re.Match[str]) -> str:
        nonlocal known
        name = match[1] or match[3]
        inner = variables.get(name, match[2])
        if inner is None or _REFERENCE.search(inner):
            known = False
            return match[0]
        return inner

    return _REFERENCE.sub(replacement, value), known
