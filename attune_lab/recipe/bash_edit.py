"""Edits of a Bash launch script that touch only the lines of the changed settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attune_lab.contracts import UserError
from attune_lab.recipe.megatron import Interpreted, Occurrence, flag_words, spelling_for, value_words
from attune_lab.recipe.recipe import Value
from attune_lab.recipe.registry import registry
from attune_lab.recipe.words import Edit, Launch, Region, Word, line_of, line_span, newline_of

_RELATED = (
    "layout", "comm", "memory", "kernels", "batch", "precision",
    "moe", "optimizer", "model", "data", "checkpoint", "logging",
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")


def setting_edits(launch: Launch, interpreted: Interpreted, changes: Mapping[str, Value]) -> list[Edit]:
    """Edits that give each changed setting its value; None removes it.

    Raises:
        UserError: a setting is written where it cannot be changed.
    """
    edits: list[Edit] = []
    cut: list[Region] = []
    gone = {key for key, value in changes.items() if value is None}
    for key, value in changes.items():
        found = interpreted.occurrences.get(key, ())
        words = () if value is None else flag_words(key, value)
        if found and words and all(_replaceable(occurrence, key, value) for occurrence in found):
            for occurrence in found:
                edits += _revalued(occurrence, value)
            continue
        cut += [_place(word) for occurrence in found for word in occurrence.words]
        if words:
            edits.append(_added(launch, _anchor(interpreted, key, gone), words))
    return edits + _cuts(launch.text, cut)


def environment_edits(launch: Launch, changes: Mapping[str, str | None]) -> list[Edit]:
    """Edits that set or remove environment variables."""
    edits: list[Edit] = []
    for name, value in changes.items():
        variable = launch.environment.get(name)
        if variable is None:
            edits += [_exported(launch, name, value)] if value is not None else []
        elif value is None:
            edits.append(_unset(launch, name))
        else:
            edits.append(_environment_value(launch, name, value))
    return edits


def launcher_edits(launch: Launch, counts: Mapping[str, int]) -> list[Edit]:
    """Edits that make the launch line ask for other counts of nodes and processes, where it states them plainly."""
    edits = []
    for name, word in launch.launcher_words.items():
        if word.regions and name in counts and counts[name] != launch.launcher[name]:
            region = word.regions[-1]
            edits.append(Edit(region.start, region.end, str(counts[name])))
    return edits


def _unset(launch: Launch, name: str) -> Edit:
    """Cut a variable's setting, its whole line where it is the only one of an `export`."""
    text, statement = launch.text, launch.environment[name].statement
    if launch.environment[name].listed:
        line = line_of(text, statement.start)
        raise UserError(f"line {line}: {name} stands in a list for the launcher; remove it there by hand")
    line_start, line_end = line_span(text, statement.start)
    rest = text[line_start : statement.start] + text[statement.end : line_end]
    if rest.split("#")[0].strip() == "export":
        return Edit(line_start, line_end, "")
    return _cuts(text, [statement])[0]


def _environment_value(launch: Launch, name: str, value: str) -> Edit:
    variable = launch.environment[name]
    if not variable.statement.own:
        raise UserError(f"{name} is set in an included file; change it there")
    if variable.listed:
        return Edit(variable.statement.start, variable.statement.end, value)
    if variable.regions and (region := variable.regions[-1]).quoted == (not _PLAIN.fullmatch(value)):
        return Edit(region.start, region.end, _written(value, region))
    statement = variable.statement
    return Edit(statement.start, statement.end, f"{name}={_quoted(value)}")


def _replaceable(occurrence: Occurrence, key: str, value: Value) -> bool:
    """The flag stays and only its value changes, word for word."""
    spelling = occurrence.spelling
    if spelling.arity == "constant":
        return False
    wanted = spelling_for(registry()[key], value)
    same_flag = wanted is not None and wanted.arity == spelling.arity
    return same_flag and (occurrence.joined or len(value_words(spelling, value)) == len(occurrence.values))


def _revalued(occurrence: Occurrence, value: Value) -> list[Edit]:
    texts = value_words(occurrence.spelling, value)
    if occurrence.joined:
        region = _place(occurrence.flag)
        return [Edit(region.start, region.end, f"{occurrence.spelling.flag}={_written(texts[0], region)}")]
    edits = []
    for word, text in zip(occurrence.values, texts, strict=True):
        if word.text != text:
            _place(word)
            region = word.regions[-1]
            edits.append(Edit(region.start, region.end, _written(text, region)))
    return edits


def _place(word: Word) -> Region:
    """The outermost place that holds the word alone."""
    if not word.regions:
        raise UserError(f"line {word.line}: '{word.text}' is built from several pieces or included; write it out there")
    return word.regions[0]


def _cuts(text: str, regions: Iterable[Region]) -> list[Edit]:
    """Edits that remove the regions; lines that hold nothing else go as a whole."""
    runs: list[tuple[int, int]] = []
    for region in sorted(regions, key=lambda r: r.start):
        if runs and not text[runs[-1][1] : region.start].strip(" \t"):
            runs[-1] = (runs[-1][0], max(region.end, runs[-1][1]))
        else:
            runs.append((region.start, region.end))
    edits: list[Edit] = []
    lines: list[tuple[int, int]] = []
    for start, end in runs:
        line_start, line_end = line_span(text, start)
        before, after = text[line_start:start], text[end:line_end]
        if before.strip() or after.strip() not in ("", "\\"):
            blank_before = len(before) - len(before.rstrip()) if before.strip() else 0
            blank_after = 0 if blank_before else len(after) - len(after.lstrip(" \t"))
            edits.append(Edit(start - blank_before, end + blank_after, ""))
        elif lines and lines[-1][1] == line_start:
            lines[-1] = (lines[-1][0], line_end)
        else:
            lines.append((line_start, line_end))
    return edits + [_line_cut(text, start, end) for start, end in lines]


def _line_cut(text: str, start: int, end: int) -> Edit:
    """Cut whole lines; where they ended a continued command, the line before must end it instead."""
    previous = text[:start].rstrip("\r\n")
    if text[start:end].rstrip().endswith("\\") or not previous.endswith("\\"):
        return Edit(start, end, "")
    return Edit(len(previous[:-1].rstrip(" \t")), end, newline_of(text) if text[start:end].endswith("\n") else "")


def _added(launch: Launch, anchor: Region, words: tuple[str, ...]) -> Edit:
    """A new flag before ``anchor``, on a line of its own where that one begins its line."""
    text = launch.text
    written = " ".join(_written(word, anchor) for word in words)
    line_start, line_end = line_span(text, anchor.start)
    indent = text[line_start : anchor.start]
    if indent.strip():
        return Edit(anchor.start, anchor.start, written + " ")
    previous = text[line_span(text, max(line_start - 1, 0))[0] : line_start].rstrip()
    continued = previous.endswith("\\") or text[line_start:line_end].rstrip().endswith("\\")
    tail = " \\" if continued else ""
    return Edit(line_start, line_start, f"{indent}{written}{tail}{newline_of(text)}")


def _anchor(interpreted: Interpreted, key: str, gone: set[str]) -> Region:
    """The flag a new one goes before: the last one of its group, or of the next related group, that stays."""
    settings = registry()
    related = [settings[key].group, *_RELATED]
    places = [
        (other not in gone, -related.index(settings[other].group), occurrence.flag.regions[0])
        for other, found in interpreted.occurrences.items()
        for occurrence in found
        if occurrence.flag.regions
    ]
    if not places:
        raise UserError("no flag of this script is written where another can be added; write the flags in one array")
    return max(places, key=lambda place: (place[0], place[1], place[2].start))[2]


def _exported(launch: Launch, name: str, value: str) -> Edit:
    """A new export before the last one, or before the training command."""
    text = launch.text
    written = f"export {name}={_quoted(value)}{newline_of(text)}"
    lines = [line_span(text, v.statement.start) for v in launch.environment.values() if v.statement.own]
    exports = [start for start, end in lines if text[start:end].startswith("export ") and start <= launch.start]
    at = max(exports) if exports else line_span(text, launch.start)[0]
    return Edit(at, at, written)


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def _written(value: str, region: Region) -> str:
    """``value`` as it must stand in ``region``.

    Raises:
        UserError: the place is inside quotes and the value has characters that mean something there.
    """
    if not region.quoted:
        return _quoted(value)
    if re.search(r"[\s\"'\\$`]", value):
        raise UserError(f"'{value}' cannot be written inside the quotes at character {region.start}; unquote the place")
    return value
