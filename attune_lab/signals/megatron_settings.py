"""The settings a Megatron-LM run trains with, by the project's names: its arguments after Megatron's own repairs."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Mapping
from enum import Enum
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.recipe.megatron import checked
from attune_lab.recipe.recipe import Value
from attune_lab.recipe.registry import Setting, registry

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}


def megatron_settings(arguments: Mapping[str, Any], parser: ArgumentParser) -> dict[str, Value]:
    """Every setting of the registry that the parser knows, with the value in force.

    Args:
        arguments: ``vars(get_args())`` of the running job.
        parser: with Megatron's flags, which say where the value of each is kept.
    """
    actions = parser._option_string_actions
    known = {
        key: _value(setting, arguments, actions)
        for key, setting in registry().items()
        if any(flag in actions and actions[flag].dest in arguments for flag in setting.flags)
    }
    return known | {"dp": arguments.get("data_parallel_size"), "world_size": arguments.get("world_size")}


def _value(setting: Setting, arguments: Mapping[str, Any], actions: Mapping[str, Action]) -> Value:
    """What the arguments say of one setting: a flag's argument, or the constant of the flag that was taken."""
    absent = setting.default
    for spelling in setting.spellings:
        action = actions.get(spelling.flag)
        if action is None or action.dest not in arguments:
            continue
        held = arguments[action.dest]
        if spelling.arity != "constant":
            return _plain(setting, held)
        if held == action.const:
            return spelling.constant
        if setting.kind == "bool":
            absent = not spelling.constant
    return absent


def _plain(setting: Setting, held: Any) -> Value:
    """A value as a recipe would write it: text for types and enumerations, kept as text where it does not fit."""
    if isinstance(held, Enum):
        held = held.name
    name = str(held).removeprefix("torch.")
    if name in _DTYPES and not isinstance(held, str):
        held = _DTYPES[name]
    if isinstance(held, list | tuple):
        held = tuple(map(str, held)) if setting.kind == "list" else " ".join(map(str, held))
    if held is None:
        return None
    try:
        return checked(setting, held)
    except UserError:
        return str(held)
