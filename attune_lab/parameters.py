"""The declared parameters of the search space: what they are called, what they can be, what they write."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from attune_lab.contracts import UserError
from attune_lab.recipe.expressions import Expression, compile_expression
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.registry import registry
from attune_lab.recipe.shape import defaults
from simulator.legality import legal
from simulator.models import ModelShape

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LAYOUT = ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs")
"""The sizes that together are a layout, in the order of `layout_grid`."""

_ALWAYS = compile_expression("True")
_MAX_TP = 16
_MAX_CP = 16
_MAX_PP = 64
_MAX_VPP = 8
_MAX_MBS = 16


@dataclass(frozen=True)
class Parameter:
    """One thing a tuner may move.

    Attributes:
        key: name in proposals and lessons; a setting, ``env.NAME``, or a compound of several settings.
        label: for a person.
        choices: legal values, in order (sizes ascending, recomputation from none to full).
        applies_if: over a recipe's effective settings; where it is false the parameter does nothing.
        ordered: neighbours are the next smaller and larger choice, not every other choice.
        compound: for a compound, choice -> the settings it writes.
        settings: the settings (or ``env.NAME``) it governs.
    """

    key: str
    label: str
    choices: tuple[Value, ...]
    applies_if: Expression
    ordered: bool
    settings: tuple[str, ...]
    compound: Mapping[Value, Mapping[str, Value]] = field(default_factory=dict)

    def writes(self, value: Value) -> dict[str, Value]:
        """What choosing ``value`` writes; None returns a setting to the stack's default."""
        if self.compound:
            return {**dict.fromkeys(self.settings), **self.compound[value]}
        return {self.key: value}


def declared(base: Mapping[str, Any], approvals: Collection[str]) -> dict[str, Parameter]:
    """The parameters that apply to a model and cluster, by key.

    Args:
        base: effective settings of the baseline.
        approvals: names of numerics-changing parameters the user has approved.
    """
    found = {}
    for key, entry in _declaration().items():
        if _holds(entry.get("needs"), base) and entry.get("approval") in (None, *approvals):
            found[key] = _parameter(key, entry, base)
    return found


def approvable() -> tuple[str, ...]:
    """Names a user can approve."""
    return tuple(entry["approval"] for entry in _declaration().values() if "approval" in entry)


def settled_approvals(approvals: Collection[str]) -> tuple[str, ...]:
    """The names that ``approvals`` mean: settings and approvable parameters; ``precision.fp8`` is ``fp8``.

    Raises:
        UserError: a name that is neither, or stands after the wrong group.
    """
    return tuple(dict.fromkeys(_settled(approval) for approval in approvals))


def _settled(approval: str) -> str:
    group, _, name = approval.rpartition(".")
    settings = registry()
    groups = {settings[key].group for key in (name, *approved_settings([name])) if key in settings}
    if groups and (not group or group in groups):
        return name
    if groups:
        raise UserError(f"nothing called {approval} can be approved; {name} belongs to {' and '.join(sorted(groups))}")
    near = difflib.get_close_matches(name, [*approvable(), *settings], n=3)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(approvable())}"
    raise UserError(f"nothing called {approval} can be approved; {advice}")


def approved_settings(approvals: Collection[str]) -> frozenset[str]:
    """The settings that the parameters approved by ``approvals`` write."""
    entries = [(k, entry) for k, entry in _declaration().items() if entry.get("approval") in approvals]
    return frozenset(name for key, entry in entries for name in entry.get("settings", [key]))


@cache
def _declaration() -> Mapping[str, Any]:
    text = files("attune_lab").joinpath("data/space.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Any] = YAML(typ="safe").load(text)
    return entries


def _holds(condition: str | None, values: Mapping[str, Any]) -> bool:
    return condition is None or bool(compile_expression(condition).evaluate(values))


def _parameter(key: str, entry: Mapping[str, Any], base: Mapping[str, Any]) -> Parameter:
    applies_if = compile_expression(entry["applies_if"]) if "applies_if" in entry else _ALWAYS
    if "settings" in entry:
        compound = {name: _written(choice) for name, choice in entry["choices"].items() if _offered(choice, base)}
        ordered = key in ("recompute", "cuda_graph")
        return Parameter(key, entry["label"], tuple(compound), applies_if, ordered, tuple(entry["settings"]), compound)
    kind = entry.get("kind")
    choices = sizes(key, base) if kind == "size" else (False, True) if kind == "switch" else tuple(entry["choices"])
    return Parameter(key, entry["label"], choices, applies_if, kind == "size", (key,))


def _offered(choice: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """A choice the baseline has already is kept, needed or not."""
    written = _written(choice)
    in_use = bool(written) and all(base[name] == value for name, value in written.items())
    return in_use or _holds(choice.get("needs"), base)


def _written(choice: Mapping[str, Any]) -> dict[str, Value]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in choice.get("set", {}).items()}


def sizes(key: str, base: Mapping[str, Any]) -> tuple[int, ...]:
    """Choices of one layout size for the baseline's model and cluster, ascending; its own size is among them."""
    gpus, layers = base["world_size"], base["num_layers"]
    experts = base["num_experts"] or 1
    top = min(_MAX_TP, base["nvlink_domain"])
    ranges = {
        "tp": [n for n in _powers(top) if base["heads"] % n == 0],
        "pp": [n for n in range(1, min(_MAX_PP, layers, gpus) + 1) if gpus % n == 0],
        "cp": [n for n in _powers(_MAX_CP) if n == 1 or base["seq_len"] % (2 * n) == 0],
        "ep": [n for n in range(1, min(experts, gpus) + 1) if experts % n == 0 and gpus % n == 0],
        "etp": [n for n in _powers(top) if base["moe_ffn"] % n == 0],
        "vpp": list(range(1, min(_MAX_VPP, max(layers // 2, 1)) + 1)),
        "mbs": [n for n in _powers(_MAX_MBS) if base["gbs"] % n == 0],
    }
    return tuple(sorted({*ranges[key], base[key] or 1}))


def _powers(top: int) -> list[int]:
    return [2**n for n in range(top.bit_length()) if 2**n <= top]


def layout_grid(
    parameters: Mapping[str, Parameter], base: Mapping[str, Any], shape: ModelShape
) -> tuple[tuple[Ints, ...], Bools]:
    """The sizes of every axis of `LAYOUT`, and where on their grid (7 dimensions) the divisibility rules hold.

    A size that is no parameter (experts of a dense model) is 1.
    """
    axes = tuple(np.array(parameters[key].choices if key in parameters else (1,), dtype=np.int64) for key in LAYOUT)
    columns = {**dict(zip(LAYOUT, np.ix_(*axes), strict=True)), "gbs": base["gbs"], "seq_len": base["seq_len"]}
    return axes, legal(columns, shape, base["world_size"])


def stated(recipe: Recipe, name: str) -> Value:
    """What ``recipe`` itself says of a setting or ``env.NAME``, None where it is silent."""
    return recipe.environment.get(name[4:]) if name.startswith("env.") else recipe.settings.get(name)


def spelled(baseline: Recipe, name: str, value: Value) -> Value:
    """``value`` as the baseline wrote it when it is the same; the stack's default stays unsaid where the baseline
    does not speak of the setting, and where there is nothing to write (a switch that is off, one virtual stage).
    """
    if name.startswith("env."):
        return value
    own, default = stated(baseline, name), defaults()[name]
    if value == (default if own is None else own):
        return own
    unsaid = own is None or isinstance(value, bool)
    return None if (value == default and unsaid) or (name == "vpp" and value == 1) else value


def read(parameter: Parameter, recipe: Recipe, settings: Mapping[str, Any]) -> Value:
    """A parameter's value in a recipe with these effective settings; a combination that is no choice is ``other``."""
    if not parameter.compound:
        if parameter.key.startswith("env."):
            return stated(recipe, parameter.key)
        value: Value = settings[parameter.key]
        return (value or 1) if parameter.key in LAYOUT else value
    actual = {name: _comparable(name, stated(recipe, name)) for name in parameter.settings}
    for choice in parameter.choices:
        if all(actual[name] == _comparable(name, value) for name, value in parameter.writes(choice).items()):
            return choice
    return "other"


def _comparable(name: str, value: Value) -> Any:
    """Module lists compare as sets, an unset value as the stack's default."""
    value = defaults()[name] if value is None else value
    return frozenset(value) if isinstance(value, tuple) else value


def write(recipe: Recipe, written: Mapping[str, Value]) -> Recipe:
    """``recipe`` with settings and ``env.NAME`` written; None removes one."""
    settings = {name: value for name, value in written.items() if not name.startswith("env.")}
    variables = {name[4:]: _text(value) for name, value in written.items() if name.startswith("env.")}
    return recipe.with_settings(settings).with_environment(variables)


def _text(value: Value) -> str | None:
    return None if value is None else str(value)
