"""What a defect's condition may ask of a run: settings, environment, versions, and facts of data and stack."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import UserError
from attune_lab.recipe.expressions import versions

if TYPE_CHECKING:
    from attune_lab.recipe import Recipe
    from simulator.hardware import ClusterSpec

LIBRARIES = (
    "mcore", "te", "torch", "nccl", "transformers", "deepspeed", "accelerate", "torchtitan", "automodel", "verl",
    "container",
)  # fmt: skip
"""Whose versions conditions compare. ``container`` is the NeMo image, as in ``26.04``."""

_MEGATRON = ("megatron", "megatron_lm", "megatron_core", "mcore", "bridge", "megatron_bridge", "nemo")
_ENVIRONMENT = ("TORCH_NCCL_AVOID_RECORD_STREAMS",)
_NO_CONTAINER = {"container": None}  # most runs are in none, so a missing one is no open question


@cache
def vocabulary() -> Mapping[str, Mapping[str, Any]]:
    """The entries of ``data/facts.yaml``; its header explains them."""
    from ruamel.yaml import YAML

    text = files("attune_lab").joinpath("data/facts.yaml").read_text(encoding="utf-8")
    entries: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(text)
    return entries


def facts_of(recipe: Recipe, cluster: ClusterSpec, reported: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The facts of a recipe on a cluster. What it does not tell has its default or is absent.

    Args:
        reported: versions a run reported; they count before those the recipe names. A library nobody names is absent.
    """
    from attune_lab.recipe.effective import effective

    values = {**_defaults(), **effective(recipe, cluster)}
    values |= _implied(values)
    values["te_vendor"] = "amd" if cluster.accelerator.name.startswith("MI") else "nvidia"
    values.update({f"env_{name}": value for name, value in recipe.environment.items()})
    return _with_versions(values, {**recipe.versions, **(reported or {})})


def facts_in_force(settings: Mapping[str, Any], stack: Mapping[str, str]) -> dict[str, Any]:
    """The facts of a run of Megatron-LM as it recorded them.

    Args:
        settings: in force, by registry key; entries that no condition can ask for are left out, and a value that the
            setting cannot have leaves it unknown.
        stack: library versions.
    """
    from attune_lab.recipe.registry import registry

    asked = {name: value for name, value in settings.items() if name in registry() or name in vocabulary()}
    fitting = {name: value for name, value in asked.items() if value is None or _fits(name, value)}
    values = facts_from({**fitting, **{name: text for name, text in stack.items() if name in LIBRARIES}})
    values |= _implied(values)
    return {name: value for name, value in values.items() if name not in asked or name in fitting}


def facts_from(given: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that ``given`` states, for any stack.

    Args:
        given: by names of the registry, of ``data/facts.yaml``, of `LIBRARIES` (versions as text), ``env_NAME``, and
            Megatron-LM's arguments without their dashes (``moe_aux_loss_coeff``). None says nothing. A setting that is
            missing has its default; sizes that follow from others are derived.

    Raises:
        UserError: a name that is none of these, or a value of the wrong type.
    """
    from attune_lab.recipe.registry import registry

    stated = dict(_translated(name, value) for name, value in given.items() if value is not None)
    values: dict[str, Any] = {**_defaults(), **{key: setting.default for key, setting in registry().items()}}
    values |= {name: _checked(name, value) for name, value in stated.items()}
    values |= {name: value for name, value in _derived(values).items() if name not in stated}
    stack = values["stack"].lower().replace("-", "_")
    values["stack"] = "megatron_lm" if stack in _MEGATRON else stack
    return _with_versions(values, {name: stated[name] for name in LIBRARIES if name in stated})


def _implied(values: Mapping[str, Any]) -> dict[str, Any]:
    """What settings of Megatron-LM say of data and start."""
    return {
        # The pre-training loader masks nothing else.
        "ragged": any(values[name] for name in ("eod_mask_loss", "packed", "variable_seq")),
        "qkv_format": "thd" if values["packed"] or values["inter_document_masking"] else "sbhd",
        "resume": bool(values["load"]) and not values["finetune"],
    }


@cache
def _defaults() -> Mapping[str, Any]:
    known = {name: entry["default"] for name, entry in vocabulary().items() if "default" in entry}
    return {**known, **{f"env_{name}": None for name in _ENVIRONMENT}}


def _translated(name: str, value: Any) -> tuple[str, Any]:
    """The name that conditions use for what ``name`` says, and the value under it."""
    from attune_lab.recipe.registry import registry, setting_of_flag, spelling_of_flag

    if name in registry() or name in vocabulary() or name in LIBRARIES or name.startswith("env_"):
        return name, value
    others = {other: fact for fact, entry in vocabulary().items() for other in entry.get("also", ())}
    if name in others:
        return others[name], value
    flag = "--" + name.replace("_", "-")
    setting, spelling = setting_of_flag(flag), spelling_of_flag(flag)
    if setting and spelling and spelling.arity == "constant":
        absent = not spelling.constant if setting.kind == "bool" else setting.default
        return setting.key, spelling.constant if value else absent
    if setting:
        return setting.key, value
    near = difflib.get_close_matches(name, [*registry(), *vocabulary(), *LIBRARIES, *others], n=3)
    advice = f"did you mean {' or '.join(near)}?" if near else "see the registry of settings and facts.yaml"
    raise UserError(f"'{name}' is no fact that a condition can ask for; {advice}")


def _checked(name: str, value: Any) -> Any:
    from attune_lab.recipe.megatron import checked
    from attune_lab.recipe.registry import registry

    if name in registry():
        return checked(registry()[name], _plain(value))
    wanted = vocabulary()[name].get("default", False) if name in vocabulary() else ""
    if type(value) is not type(wanted):
        raise UserError(f"{name} takes a value of type {type(wanted).__name__}, not {value!r}")
    return value


def _fits(name: str, value: Any) -> bool:
    """Whether a value has the type of what it is to be."""
    try:
        _checked(name, value)
    except UserError:
        return False
    return True


def _plain(value: Any) -> Any:
    """A value as the registry writes it; JSON knows no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that follow from others."""
    grid = max(values["tp"] * values["pp"] * values["cp"], 1)
    dp = max(values["dp"], values["world_size"] // grid)
    per_pass = max(values["mbs"] or 1, 1) * dp
    return {
        "dp": dp,
        "world_size": grid * dp,
        "etp": values["tp"] if values["num_experts"] else 1,
        "num_microbatches": values["gbs"] // per_pass if values["gbs"] else values["num_microbatches"],
        "gbs": per_pass * values["num_microbatches"],
    }


def _with_versions(values: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    """``values`` with the versions that are known, and no others."""
    known, others = versions(named), dict(values)
    for name in LIBRARIES:
        others.pop(name, None)
    return {**others, **_NO_CONTAINER, **{name: known[name] for name in LIBRARIES if name in known}}
