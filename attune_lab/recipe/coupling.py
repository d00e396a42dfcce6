"""Settings that must move together: what else changes when a layout or an overlap is edited."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from typing import Any

from attune_lab.recipe.constraints import breaks
from attune_lab.recipe.effective import effective
from attune_lab.recipe.expressions import Expression, compile_expression
from attune_lab.recipe.recipe import Recipe, Value
from attune_lab.recipe.remembered import remembered
from simulator.hardware import ClusterSpec

SPLIT_KEYS = (
    "vpp", "layers_per_vstage", "pp_layout", "first_stage_layers", "last_stage_layers",
    "account_embedding", "account_loss",
)  # fmt: skip
"""Together these say which layer sits on which stage; they are only ever written together."""

KEPT_WHILE: Mapping[str, Expression] = {
    "overlap_param_gather_with_optimizer_step": compile_expression("overlap_param_gather and bool(vpp)"),
    "defer_embedding_wgrad": compile_expression("pp > 1"),
    "overlap_p2p_comm_warmup_flush": compile_expression("overlap_p2p_comm"),
}
"""Settings that only the baseline decides, and what they need: dropped without it, they come back with it."""

_GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"
_MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def settle(edited: Recipe, before: Recipe, *, baseline: Recipe, explicit: Set[str], cluster: ClusterSpec) -> Recipe:
    """``edited`` with every setting that follows from its edits brought in line.

    Args:
        edited: ``before`` with the edits written.
        baseline: whose own stage split is used again when its pipeline sizes come back.
        explicit: settings (and ``env.NAME``) the edit named; they are never overruled, right or wrong.
    """
    now, then = effective(edited, cluster), _usual(before, cluster)
    edits: dict[str, Value] = {**_sizes(now, then, edited), **_overlaps(now)}
    chunks = _wanted_chunks(now, then, explicit)
    if _split_moves(now, then, chunks):
        edits |= _split(now, chunks, explicit, _usual(baseline, cluster), baseline)
    else:
        edits |= {key: before.settings.get(key) for key in SPLIT_KEYS}
    fixed = explicit - set(SPLIT_KEYS)  # `_split` heeds what was asked for, though a layout string may spell it
    edited = edited.with_settings({key: value for key, value in edits.items() if key not in fixed})
    settled = effective(edited, cluster)
    edited = edited.with_settings(
        {name: baseline.settings.get(name) if kept.evaluate(settled) else None for name, kept in KEPT_WHILE.items()}
    )
    variables = required_environment(settled)
    return edited.with_environment({k: v for k, v in variables.items() if f"env.{k}" not in explicit})


@remembered(last=16)
def _usual(recipe: Recipe, cluster: ClusterSpec) -> Mapping[str, Any]:
    """`effective` of a recipe from which many edits start."""
    return effective(recipe, cluster)


def _sizes(now: Mapping[str, Any], then: Mapping[str, Any], edited: Recipe) -> dict[str, Value]:
    """Sequence parallelism comes and goes with TP; an ETP that was inherited keeps its size when TP moves."""
    edits: dict[str, Value] = {}
    if now["tp"] == 1 < then["tp"]:
        edits |= {"sequence_parallel": None, "tp_comm_overlap": None}
    elif then["tp"] == 1 < now["tp"]:
        edits["sequence_parallel"] = True
    if now["tp"] != then["tp"] and now["num_experts"] and edited.settings.get("etp") is None:
        edits["etp"] = then["etp"]
    return edits


def _overlaps(now: Mapping[str, Any]) -> dict[str, Value]:
    """Overlaps that cannot live without another, or with the new dispatcher, are dropped."""
    edits: dict[str, Value] = {}
    if now["overlap_param_gather"] and not now["overlap_grad_reduce"]:
        edits["overlap_param_gather"] = None
    if now["delay_wgrad"] and not now["ep_overlap"]:
        edits["delay_wgrad"] = None
    if breaks("M11", now):  # not every dispatcher of every release can run shared experts meanwhile
        edits["shared_expert_overlap"] = None
    return edits


def _wanted_chunks(now: Mapping[str, Any], then: Mapping[str, Any], explicit: Set[str]) -> int:
    """Virtual stages per rank after the edit, however they were spelled before it; 1 without a pipeline."""
    wanted = now["vstages_per_rank"] if "vpp" in explicit else then["vpp"]
    return int(wanted or 1) if now["pp"] > 1 else 1


def _split_moves(now: Mapping[str, Any], then: Mapping[str, Any], chunks: int) -> bool:
    same = all(now[key] == then[key] for key in ("pp", "account_embedding", "account_loss"))
    return not same or chunks != (then["vpp"] or 1)


def _split(
    now: Mapping[str, Any], chunks: int, explicit: Set[str], original: Mapping[str, Any], baseline: Recipe
) -> dict[str, Value]:
    """The stage split for the new pipeline sizes."""
    flags = (bool(now["account_embedding"]), bool(now["account_loss"]))
    asked = bool({"account_embedding", "account_loss"} & explicit)
    again = (now["pp"], chunks) == (original["pp"], original["vpp"] or 1)
    if again and (not asked or flags == (original["account_embedding"], original["account_loss"])):
        return {key: baseline.settings.get(key) for key in SPLIT_KEYS}
    mtp_layers = now["mtp_num_layers"] or 0
    return split_settings(now["num_layers"], now["pp"], chunks, flags=flags, keep_flags=asked, mtp_layers=mtp_layers)


def split_settings(
    layers: int, pp: int, chunks: int, *, flags: tuple[bool, bool], keep_flags: bool = False, mtp_layers: int = 0
) -> dict[str, Value]:
    """Settings that spread ``layers`` over ``pp`` ranks of ``chunks`` virtual stages.

    The embedding and loss count as layers as in ``flags`` where that divides, else neither or both where one of
    these does, else a layout string places every layer. With ``keep_flags`` set flags stay, and with more virtual
    stages than layers nothing is legal: then the plain split is written and the constraints refuse it.
    """
    parts = pp * chunks
    legal = account_flags(layers, parts)
    plain: dict[str, Value] = {**dict.fromkeys(SPLIT_KEYS), "vpp": chunks if chunks > 1 else None}
    for embedding, loss in (flags,) if keep_flags else (flags, (False, False), (True, True)):
        if (embedding, loss) in legal or (keep_flags and (embedding or loss)):
            return {**plain, "account_embedding": embedding or None, "account_loss": loss or None}
    if layers < parts:
        return plain
    return {**plain, "vpp": None, "pp_layout": even_layout(layers, parts, mtp_layers=mtp_layers)}


def account_flags(layers: int, parts: int) -> list[tuple[bool, bool]]:
    """Which of (embedding, loss) may count as a layer so that ``parts`` virtual stages come out even."""
    return [
        (embedding, loss)
        for embedding, loss in itertools.product((False, True), repeat=2)
        if (layers + embedding + loss) % parts == 0 and (layers + embedding + loss) // parts > (embedding or loss)
    ]


def even_layout(layers: int, parts: int, *, mtp_layers: int = 0) -> str:
    """The layout string of the most even split; where it does not divide, the ends get a layer less.

    The embedding and, more so, the loss add work to the ends.
    """
    share, rest = divmod(layers, parts)
    first = (parts - rest) // 2
    sizes = [share + (first <= part < first + rest) for part in range(parts)]
    stages = [f"t*{size}" if size > 1 else "t" * size for size in sizes]
    return "E" + "|".join(stages) + "m" * mtp_layers + "L"


def required_environment(now: Mapping[str, Any]) -> dict[str, str | None]:
    """Environment variables the stack insists on under effective settings ``now`` (constraints S04 and G07)."""
    edits: dict[str, str | None] = {}
    split = now["tp"] > 1 or now["cp"] > 1
    excused = now["torch_fsdp2"] or now["megatron_fsdp"] or now["ep_overlap"]
    if split and now["gpu_arch_major"] < 10 and not excused:
        edits[_MAX_CONNECTIONS] = "1"
    if now["cuda_graph_impl"] == "transformer_engine" and now["expandable_segments"]:
        edits[_GRAPH_REGISTER] = "0"
    return edits
