"""How one setting that differs between two runs is judged: by its class, its direction and what a user approved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attune_lab.gate.verdict import Check

if TYPE_CHECKING:
    from attune_lab.recipe.registry import Setting

GUARDS = {"check_nan": "it stops a run that has already gone wrong"}
"""Settings that change nothing in a healthy run but may not be switched off by a tuner."""

FP8_GEMMS = (
    "fp8_recipe", "fp8_margin", "fp8_interval", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_wgrad",
    "router_padding_quant",
)  # fmt: skip
"""What an approval of ``fp8`` covers besides: how GEMMs are quantised, not attention and not the stored weights."""

_SHOWN = 8
_LONGEST = 200
_DTYPES = {None: 1, "bf16": 1, "fp16": 1, "fp8": 0, "fp32": 2, "fp64": 3}

FREE_OUTSIDE = {
    "dp": "Follows from the layout and the ranks",
    "world_size": "Ranks of the job",
    "num_microbatches": "Follows from the global batch",
    "schedule": "Order of forward and backward passes",
    "vocab_padded": "Rows without a token",
}
"""What live objects tell besides the settings of a recipe, with no say in what is trained."""

FIXED_OUTSIDE = {
    "data_seed": "Decides which samples are drawn",
    "samples_per_epoch": "Decides when samples repeat",
    "ragged": "Length of the sequences",
    "router_padding_mask": "Whether padding takes part in the load balance",
    "layers_trained": "Layers that the run really holds",
    "parameters_trained": "Weights that the run really updates",
    "optimizer.parameters_trained": "Weights that the optimizer really updates",
    "optimizer.weight_decay_on_norms": "Which weights are decayed",
    "optimizer.decayed_without_need": "Which weights are decayed",
    "optimizer.schedule": "Learning rate of every step",
}
"""The same, where a change is one of what is trained."""


@cache
def outside() -> Mapping[str, Setting]:
    """`FREE_OUTSIDE` and `FIXED_OUTSIDE` as settings, by name."""
    from attune_lab.recipe.registry import Setting

    free = [
        Setting(n, "str", None, (), "effective", "performance-only", "free", w, "") for n, w in FREE_OUTSIDE.items()
    ]
    fixed = [
        Setting(n, "str", None, (), "effective", "objective-changing", "fixed", w, "") for n, w in FIXED_OUTSIDE.items()
    ]
    return {setting.key: setting for setting in (*free, *fixed)}


def approved_names(approvals: Collection[str]) -> frozenset[str]:
    """The settings that approvals cover.

    Raises:
        UserError: an approval that names nothing.
    """
    from attune_lab.parameters import approved_settings, settled_approvals

    names = settled_approvals(approvals)
    return frozenset({*names, *approved_settings(names), *(FP8_GEMMS if "fp8" in names else ())})


def judge_setting(setting: Setting, old: Any, new: Any, approvals: Collection[str]) -> Check:
    """The check of one setting that differs.

    Args:
        approvals: as `approved_names` gives them.
    """
    key, name = setting.key, f"configuration.{setting.key}"
    moved = f"{key} changes from {show(old)} to {show(new)}"
    approved = key in approvals
    if setting.direction == "forbidden" and new:
        return Check(name, "reject", f"{moved}, which no training run may use ({_because(setting)}): remove it.")
    if key in GUARDS and old and not new:
        return Check(name, "reject", f"{moved}: keep this guard, {GUARDS[key]}.")
    if setting.cls == "objective-changing" and not (approved and setting.direction == "needs_approval"):
        return Check(name, "reject", f"{moved}, which changes what is trained ({_because(setting)}): restore it.")
    if setting.direction == "free" or approved:
        return Check(name, "pass", f"{moved}: {setting.cls}{', approved' if approved else ''}.")
    if setting.direction == "towards_fp32" and raises_precision(old, new):
        return Check(name, "pass", f"{moved}: more precise than the baseline.")
    effect = "is not a tuner's to move" if setting.cls == "performance-only" else "changes the numerics"
    return Check(name, "reject", f"{moved}, which {effect} ({_because(setting)}): approve {key} or restore it.")


def raises_precision(old: Any, new: Any) -> bool:
    """Whether a setting goes towards FP32: true, larger, or a wider type."""
    if isinstance(new, int | float) and isinstance(old, int | float | None):
        return new > (old or 0)
    return new in _DTYPES and old in _DTYPES and _DTYPES[new] > _DTYPES[old]


def show(value: Any) -> str:
    """A setting's value for a person, cut where it is long."""
    if isinstance(value, tuple):
        shown = ",".join(map(str, value[:_SHOWN])) or "none"
        return _cut(shown) if len(value) <= _SHOWN else f"{_cut(shown)},… ({len(value)} values)"
    return "unset" if value is None else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _because(setting: Setting) -> str:
    why: str = setting.why.rstrip(".")
    return why
