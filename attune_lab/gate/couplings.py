"""Settings that are harmless by themselves and change what is trained beside certain others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attune_lab.gate.verdict import Check
from attune_lab.recipe.expressions import Expression, compile_expression


@dataclass(frozen=True)
class Coupling:
    """Moving one of ``settings`` changes the objective where ``when`` holds, over the candidate's effective settings.

    ``why`` completes the sentence "… changes, and".
    """

    settings: frozenset[str]
    when: Expression
    why: str


def _coupling(settings: str, when: str, why: str) -> Coupling:
    return Coupling(frozenset(settings.split()), compile_expression(when), why)


COUPLINGS = (
    _coupling(
        "mbs tp cp", "capacity_factor is not None",
        "tokens compete for an expert's capacity within one rank's micro-batch: other tokens are dropped",
    ),
    _coupling("ep", "topk_limited_devices is not None", "a token may reach as many groups of experts as devices"),
    _coupling("tp", "'muon' in optimizer and muon_tp_mode == 'blockwise'", "Muon orthogonalises each rank's block"),
    _coupling("dp mbs", "dataloader_type == 'cyclic'", "the cyclic loader deals samples by rank and micro-batch"),
    _coupling(
        "create_attention_mask", "reset_attention_mask",
        "the loader's mask is what keeps documents apart",
    ),
)  # fmt: skip
"""**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/moe/moe_utils.py ``get_capacity``,
megatron/training/arguments.py (``--moe-router-topk-limited-devices``, ``--muon-tp-mode``),
megatron/training/datasets/data_samplers.py (``MegatronPretrainingRandomSampler``)."""


def coupled(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Check]:
    """A rejection for every move of a setting that another one ties to the objective."""
    for coupling in COUPLINGS:
        moved = sorted(key for key in coupling.settings if before.get(key) != after.get(key))
        if moved and coupling.when.evaluate(after):
            yield _rejection(moved, before, after, coupling.why)


def _rejection(moved: Collection[str], before: Mapping[str, Any], after: Mapping[str, Any], why: str) -> Check:
    changes = ", ".join(f"{key} changes from {before[key]} to {after[key]}" for key in moved)
    return Check(f"configuration.{'+'.join(moved)}", "reject", f"{changes}, and {why}: restore {' and '.join(moved)}.")
