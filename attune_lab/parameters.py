"""The declared parameters of the search space: what they are called, what they can be, what they write."""

from __future__ import annotations

import difflib
import itertools
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
from attune_lab.recipe.recipe import Value
from attune_lab.recipe.registry import registry
from simulator.legality import legal
from simulator.models import ModelShape

Ints = NDArray[np.int64]

LAYOUT = ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs")
"""The sizes that together are a layout, in the order of `legal_layouts`."""

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


def legal_layouts(parameters: Mapping[str, Parameter], base: Mapping[str, Any], shape: ModelShape) -> Ints:
    """Every combination of sizes that the divisibility rules allow, shape (n, 7) in the order of `LAYOUT`.

    A size that is no parameter (experts of a dense model) is 1.
    """
    axes = [parameters[key].choices if key in parameters else (1,) for key in LAYOUT]
    grid: Ints = np.array(list(itertools.product(*axes)), dtype=np.int64)
    columns = {**dict(zip(LAYOUT, grid.T, strict=True)), "gbs": base["gbs"], "seq_len": base["seq_len"]}
    layouts: Ints = grid[legal(columns, shape, base["world_size"])]
    return layouts
