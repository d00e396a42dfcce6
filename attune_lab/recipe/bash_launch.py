"""From the words of a training command to the launch: arguments, environment, counts, each with its places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attune_lab.contracts import UserError
from attune_lab.recipe.bash_values import Scalar, Scope, text_of
from attune_lab.recipe.registry import setting_of_flag
from attune_lab.recipe.words import Launch, Region, Variable, Word, line_of

_LAUNCHER_COUNTS = {"--nnodes": "nnodes", "--nproc_per_node": "nproc_per_node", "--nproc-per-node": "nproc_per_node"}

_IRRELEVANT_GROUPS = frozenset({"data", "checkpoint", "logging"})


@dataclass(frozen=True)
class Found:
    """A command that passes Megatron-LM flags: its words, the variables set before it, where it and its list begin."""

    fields: list[Scalar]
    prefix: dict[str, tuple[Scalar, Region]]
    start: int
    list_start: int


@dataclass(frozen=True)
class Launcher:
    """Builds the launch of a command found in ``text`` with the variables of ``scope``."""

    text: str
    scope: Scope

    def launch(self, found: Found) -> Launch:
        """The command as words with the places each one owns."""
        fields = found.fields
        begin = _program_end(fields)
        counts = _launcher_counts([text_of(scalar) for scalar in fields[:begin]])
        owners: dict[Region, set[int]] = {}
        for index, scalar in enumerate(fields):
            for region in {r for chunk in scalar for r in chunk.trail}:
                owners.setdefault(region, set()).add(index)
        words = tuple(self._word(index, fields[index], owners, found) for index in range(begin, len(fields)))
        launcher_words = {
            name: self._word(index, fields[index], owners, found)
            for name, (_, index) in counts.items()
            if index is not None
        }
        exported = {
            name: (self.scope.scalars[name], region)
            for name, region in self.scope.exported.items()
            if name in self.scope.scalars
        }
        environment = {name: self._variable(*entry) for name, entry in {**exported, **found.prefix}.items()}
        environment |= _listed(found.fields)
        images = {
            name: text_of(value)
            for name, value in self.scope.scalars.items()
            if re.search(r"(?i)image", name) and text_of(value) and all(c.status == "known" for c in value)
        }
        launcher = {name: count for name, (count, _) in counts.items()}
        return Launch(self.text, words, environment, launcher, launcher_words, found.list_start, images)

    def _word(self, index: int, scalar: Scalar, owners: dict[Region, set[int]], found: Found) -> Word:
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


def _program_end(fields: Sequence[Scalar]) -> int:
    """Where the arguments of the training program begin."""
    texts = [text_of(field) for field in fields]
    scripts = [i for i, text in enumerate(texts) if text.endswith(".py")] or [
        i for i, text in enumerate(texts) if text.endswith(".sh")
    ]
    first_flag = next(i for i, text in enumerate(texts) if setting_of_flag(text.partition("=")[0]))
    return next((i + 1 for i in scripts), first_flag)


def _launcher_counts(texts: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """Nodes and processes per node among the launcher's words: the number, and which word is that number alone."""
    counts: dict[str, tuple[int, int | None]] = {}
    for index, (text, after) in enumerate(pairwise([*texts, ""])):
        flag, _, value = text.partition("=")
        if flag in _LAUNCHER_COUNTS and (value or after).isdigit():
            counts[_LAUNCHER_COUNTS[flag]] = int(value or after), None if value else index + 1
    return counts


def _listed(fields: Sequence[Scalar]) -> dict[str, Variable]:
    """The variables in the ``env_vars`` of ``--runtime-env-json``, by which Ray hands them to its workers."""
    for scalar in fields:
        text = text_of(scalar)
        if not text.startswith("--runtime-env-json="):
            continue
        places = [
            (chunk.trail[-1], i)
            if chunk.trail and chunk.trail[-1].end - chunk.trail[-1].start == len(chunk.text)
            else None
            for chunk in scalar
            for i in range(len(chunk.text))
        ]
        unknown = {i for i, known in enumerate(c.status == "known" for c in scalar for _ in c.text) if not known}
        found: dict[str, Variable] = {}
        for match in re.finditer(r'"([A-Za-z_]\w*)"\s*:\s*"([^"]*)"', text):
            place = places[match.start(2)] if match[2] else None
            if place is None or unknown & set(range(*match.span(2))):
                continue
            region = Region(
                place[0].start + place[1], place[0].start + place[1] + len(match[2]), True, None, place[0].own
            )
            found[match[1]] = Variable(match[2], (region,), region, listed=True)
        return found
    return {}


def trains(word: str) -> bool:
    """Whether a word is a flag that only a training command takes, spelled with dashes or, by other tools, without."""
    flag = word.partition("=")[0]
    setting = setting_of_flag(flag[:2] + flag[2:].replace("_", "-"))
    return setting is not None and setting.group not in _IRRELEVANT_GROUPS
