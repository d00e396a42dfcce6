"""Megatron-LM's command line: flags to settings of the registry, and settings to flags."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attune_lab.contracts import UserError
from attune_lab.recipe.recipe import Value
from attune_lab.recipe.registry import Setting, Spelling, registry, setting_of_flag, spelling_of_flag
from attune_lab.recipe.words import Word

_FREE_TEXT_GROUPS = frozenset({"data", "checkpoint", "logging"})
_HOUSEKEEPING = "logging"  # the group of settings that neither train nor time differently
_EXCLUSIVE = (("bf16", "fp16"), ("vpp", "layers_per_vstage"), ("vpp", "pp_layout"), ("layers_per_vstage", "pp_layout"))

_FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
_RETIRED = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size",
    "--warmup": "--lr-warmup-fraction",
    "--checkpoint-activations": _FULL,
    "--activations-checkpoint-method": _FULL,
    "--activations-checkpoint-granularity": "--recompute-granularity",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
}


@dataclass(frozen=True)
class Occurrence:
    """One appearance of a setting: its flag and, unless joined by ``=`` or absent, the words of its value."""

    spelling: Spelling
    flag: Word
    values: tuple[Word, ...]
    joined: bool = False

    @property
    def words(self) -> tuple[Word, ...]:
        """The flag and its value."""
        return (self.flag, *self.values)


@dataclass(frozen=True)
class Interpreted:
    """A command line as settings: where each one stands, and what lies outside the registry (flag -> text)."""

    settings: Mapping[str, Value]
    occurrences: Mapping[str, tuple[Occurrence, ...]]
    carried: Mapping[str, str]


def interpret(words: Sequence[Word]) -> Interpreted:
    """The settings a command line states.

    Of a flag given twice Megatron-LM takes the last. That is followed for logging alone; where the two
    values would train or time differently, whoever wrote them has to say which is meant.

    Raises:
        UserError: a value of the wrong type, a value nobody can know, or two flags that contradict each other.
    """
    settings: dict[str, Value] = {}
    occurrences: dict[str, list[Occurrence]] = {}
    carried: dict[str, str] = {}
    index = 0
    while index < len(words):
        flag, joined, inline = words[index].text.partition("=")
        end = index + 1
        while end < len(words) and not words[end].text.startswith("--"):
            end += 1
        values = tuple(words[index + 1 : end])
        setting, spelling = setting_of_flag(flag), spelling_of_flag(flag)
        if setting is None or spelling is None:
            _refuse_other_stacks(words[index], flag)
            carried[flag] = " ".join((inline, *(w.text for w in values)) if joined else (w.text for w in values))
        else:
            taken = {"constant": 0, "value": 0 if joined else 1, "words": len(values)}[spelling.arity]
            carried |= {word.text: "" for word in values[taken:] if not word.known}
            values = (*values[:taken], *(word for word in values[taken:] if word.known))
            occurrence = Occurrence(spelling, words[index], values, bool(joined))
            value = _value(setting, occurrence, inline)
            earlier = occurrences.get(setting.key, [])
            if earlier and settings[setting.key] != value and setting.group != _HOUSEKEEPING:
                raise _contradiction(earlier[-1], occurrence)
            settings[setting.key] = value
            occurrences.setdefault(setting.key, []).append(occurrence)
        index = end
    for one, other in _EXCLUSIVE:
        if settings.get(one) not in (None, False) and settings.get(other) not in (None, False):
            raise _contradiction(occurrences[one][-1], occurrences[other][-1])
    return Interpreted(settings, {key: tuple(found) for key, found in occurrences.items()}, carried)


def _refuse_other_stacks(word: Word, flag: str) -> None:
    """Raises UserError for flags of other tools and of releases that Megatron-LM itself rejects by now."""
    dashed = flag.replace("_", "-")
    if dashed != flag and setting_of_flag(dashed):
        raise UserError(
            f"line {word.line}: {flag} is the spelling of another tool, Megatron-LM writes {dashed}; give a launch "
            "script of Megatron-LM"
        )
    if flag == "--deepspeed":
        raise UserError(
            f"line {word.line}: {flag} hands the run to DeepSpeed, which shards and batches in its own way; give a "
            "launch script of Megatron-LM without it"
        )
    if flag in _RETIRED:
        raise UserError(f"line {word.line}: Megatron-LM no longer takes {flag}; write {_RETIRED[flag]} instead")


def stated(settings: Mapping[str, Value]) -> dict[str, Value]:
    """``settings`` without defaults that no flag can state, such as ``overlap_grad_reduce: False``."""
    kept = {key: value for key, value in settings.items() if value is not None}
    silent = {
        key
        for key, value in kept.items()
        if (setting := registry().get(key)) and value == setting.default and spelling_for(setting, value) is None
    }
    return {key: value for key, value in kept.items() if key not in silent}


def spelling_for(setting: Setting, value: Value) -> Spelling | None:
    """The flag that states ``value``, None where there is none."""
    for spelling in setting.spellings:
        if not spelling.deprecated or all(s.deprecated for s in setting.spellings):
            if spelling.arity != "constant" and setting.kind != "bool":
                return spelling
            if spelling.arity == "constant" and spelling.constant == value:
                return spelling
    return None


def flag_words(key: str, value: Value) -> tuple[str, ...]:
    """The words that state ``value``: flag first; empty where the value is the default and has no flag.

    Raises:
        UserError: an unknown setting, a value of the wrong type, or one that Megatron-LM has no flag for.
    """
    setting = registry().get(key)
    if setting is None:
        raise UserError(f"'{key}' is no setting of the registry; see `attune recipes` for a recipe that uses the name")
    value = checked(setting, value)
    spelling = spelling_for(setting, value)
    if spelling is None:
        if value == setting.default:
            return ()
        raise UserError(f"Megatron-LM has no flag that sets {key} to {value}; leave it at {setting.default}")
    return (spelling.flag, *value_words(spelling, value))


def value_words(spelling: Spelling, value: Value) -> tuple[str, ...]:
    """``value`` as arguments of the flag."""
    if spelling.arity == "constant":
        return ()
    if isinstance(value, tuple):
        return value
    text = repr(value) if isinstance(value, float) else str(value)
    return tuple(text.split()) if spelling.arity == "words" else (text,)


def checked(setting: Setting, value: Value) -> Value:
    """``value``, an integer made a float where the setting is one.

    Raises:
        UserError: the value does not fit the setting.
    """
    if setting.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    python = {"int": int, "float": float, "bool": bool, "str": str, "enum": str, "list": tuple}[setting.kind]
    fits = type(value) is python and (not isinstance(value, float) or math.isfinite(value))
    items = value if isinstance(value, tuple) else (value,)
    if not fits or (setting.choices and not set(items) <= set(setting.choices)) or value == "":
        choices = f" out of {', '.join(setting.choices)}" if setting.choices else ""
        raise UserError(f"{setting.key} takes a value of type {setting.kind}{choices}, not {value!r}")
    return value


def _value(setting: Setting, occurrence: Occurrence, inline: str) -> Value:
    spelling, flag = occurrence.spelling, occurrence.flag
    texts = (*((inline,) if occurrence.joined else ()), *(word.text for word in occurrence.values))
    if spelling.arity == "constant":
        if texts:
            raise UserError(f"line {flag.line}: {spelling.flag} takes no value, but '{texts[0]}' follows; remove one")
        return spelling.constant
    if not texts:
        raise UserError(f"line {flag.line}: {spelling.flag} needs a value; write one or remove the flag")
    if spelling.arity == "value" and len(texts) > 1:
        raise UserError(f"line {flag.line}: {spelling.flag} takes one value, but '{texts[1]}' follows; remove one")
    unknown = next((w for w in occurrence.words if not w.known), None)
    if unknown and not (setting.kind == "str" and setting.group in _FREE_TEXT_GROUPS):
        raise UserError(
            f"line {unknown.line}: the value {unknown.text} of {spelling.flag} is not set in this file; give it a "
            "value there (NAME=${NAME:-value} in Bash, a line of ENV_VARS in YAML)"
        )
    try:
        return checked(setting, _typed(setting, texts))
    except (UserError, ValueError):
        wanted = " or ".join(setting.choices) if setting.choices else f"a value of type {setting.kind}"
        raise UserError(f"line {flag.line}: {spelling.flag} takes {wanted}, not '{' '.join(texts)}'") from None


def _typed(setting: Setting, texts: tuple[str, ...]) -> Value:
    """Raises ValueError where the text is not of the setting's kind."""
    if setting.kind == "int":
        if not re.fullmatch(r"[+-]?\d(_?\d){0,17}", texts[0]):
            raise ValueError(texts[0])
        return int(texts[0])
    if setting.kind == "float":
        return float(texts[0])
    return texts if setting.kind == "list" else " ".join(texts)


def _contradiction(first: Occurrence, second: Occurrence) -> UserError:
    one, other = (" ".join(w.text for w in o.words) for o in (first, second))
    return UserError(
        f"lines {first.flag.line} and {second.flag.line} contradict each other: '{one}' and '{other}'; keep one of them"
    )
