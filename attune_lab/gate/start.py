"""Do two runs start from the same weights, and do they draw the same dropout masks? As far as settings tell.

Megatron-LM draws each rank's shard of the initial weights from the rank's own random stream, module by module. Another
layout or other modules therefore start elsewhere, and two curves from random weights then differ by as much as those
of two architectures: they say nothing about faults. A run that records what it started from has the entry
``initial_weights`` among its settings, and that decides.

**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/tensor_parallel/random.py ``model_parallel_cuda_manual_seed``,
megatron/training/initialize.py ``_set_random_seed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from attune_lab.signals.schema import PLACED_MASKS

INITIAL_WEIGHTS = "initial_weights"
"""A digest, independent of the layout, of the weights a run started from."""

REDRAWN_BY = (
    "tp", "pp", "vpp", "layers_per_vstage", "pp_layout", "first_stage_layers", "last_stage_layers",
    "account_embedding", "account_loss", "ep", "etp", "megatron_fsdp", "torch_fsdp2", "data_parallel_sharding_strategy",
    "transformer_impl", "use_mcore_models", "grouped_gemm", "legacy_grouped_gemm", "te_rng_tracker",
    "make_vocab_size_divisible_by", "padded_vocab_size",
)  # fmt: skip
"""Settings, harmless to what is trained, that decide which random numbers become which weight."""

MASKED_BY = (
    *REDRAWN_BY, "cp", "cp_comm_type", "hierarchical_cp", "sequence_parallel", "mbs", "dp", "mb_group_per_vp",
    "overlap_p2p_comm_warmup_flush", "ep_overlap", "attention_backend", "masked_softmax_fusion", "bias_dropout_fusion",
    "deterministic_mode", "cuda_graph_impl", "env_NVTE_*",
)  # fmt: skip
"""Settings that decide which random numbers fall on which activation: order of work, shape per rank, kernel."""


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by registry key from Megatron-LM's arguments as ``--flag: value``, without interpreting texts.

    A flag that takes no value may stand with True or None; names outside the registry are left out.
    """
    from attune_lab.recipe.registry import setting_of_flag, spelling_of_flag

    settings: dict[str, Any] = {}
    for flag, value in arguments.items():
        setting, spelling = setting_of_flag(flag), spelling_of_flag(flag)
        if setting is not None and spelling is not None and value is not False:
            settings[setting.key] = spelling.constant if spelling.arity == "constant" else value
    return settings


def start_may_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Why two runs may have started from different weights, None where they have not.

    Args:
        before, after: settings by registry key, effective ones or only those stated; one that is missing has the
            stack's default.
    """
    known = [values.get(INITIAL_WEIGHTS) for values in (before, after)]
    if None not in known:
        return None if known[0] == known[1] else "The runs recorded different initial weights"
    start = _checkpoint(before)
    if start is not None and start == _checkpoint(after):
        return None
    if moved := _moved(REDRAWN_BY, before, after):
        return f"The initial weights are drawn anew by another {', '.join(moved)}, and no common checkpoint is loaded"
    return None


def dropout_masks_may_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Why dropout may have hit other activations in one of two runs, None where it has not.

    Args:
        before, after: as for `start_may_differ`, and ``env_NVTE_*`` for variables that choose an attention kernel.
    """
    if not any(_value(values, name) for values in (before, after) for name in ("hidden_dropout", "attention_dropout")):
        return None
    if before.get(PLACED_MASKS) and after.get(PLACED_MASKS):
        return None
    names = {*MASKED_BY} | {name for name in before.keys() | after.keys() if _named(name)}
    moved = _moved(sorted(names), before, after)
    return f"Dropout masks are drawn anew by another {', '.join(moved)}" if moved else None


def _named(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in MASKED_BY)


def _moved(names: Iterable[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name in names if _value(before, name) != _value(after, name)]


def _value(values: Mapping[str, Any], name: str) -> Any:
    """A setting as it acts: the stack's default where nothing is stated, ``etp`` as it is inherited."""
    from attune_lab.recipe.registry import registry

    if name == "etp":
        return (values.get("etp") or _value(values, "tp")) if values.get("num_experts") else 1
    setting = registry().get(name)
    value = values.get(name)
    return setting.default if value is None and setting is not None else value


def _checkpoint(values: Mapping[str, Any]) -> str | None:
    """The checkpoint a run surely starts from: not the folder it saves to, nor a path that hangs on a variable."""
    if values.get("pretrained_checkpoint"):
        return str(values["pretrained_checkpoint"])
    load = values.get("load")
    return str(load) if load and load != values.get("save") and "$" not in str(load) else None
