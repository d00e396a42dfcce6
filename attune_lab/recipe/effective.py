"""What a recipe means on a cluster: the settings as they stand after the stack's own defaults and repairs.

The result is the vocabulary of constraints, defects and lessons: every registry key plus what follows from the
recipe, its environment and the cluster (``dp``, ``num_microbatches``, ``stage_layers``, ``te_version`` ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.recipe import layouts
from attune_lab.recipe.expressions import versions
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.shape import filled, leading_dense_layers, required, shape_of
from simulator.hardware import ClusterSpec

__all__ = ["effective", "shape_of"]

DEFAULT_VERSIONS: Mapping[str, tuple[int, ...]] = {"mcore": (0, 16), "torch": (2, 9), "te": (2, 12)}
"""Assumed where a recipe names none. Of Megatron-Core the oldest release the constraints were checked with: what it
takes newer ones take too."""

_BROAD_MODULES = {"mlp", "moe"}


def effective(recipe: Recipe, cluster: ClusterSpec) -> dict[str, Any]:
    """Every variable of constraints, defects and lessons that recipe and cluster determine.

    ``etp`` has inherited ``tp`` where unset, ``vpp`` is derived from any of its three spellings (None without
    interleaving), ``sequence_parallel`` is off at tp = 1; what was written stays visible as ``etp_stated``,
    ``vstages_per_rank`` and ``sequence_parallel_stated``. ``stage_layers`` is the decoder layers per pipeline
    stage, empty when the split is illegal. Versions are tuples of numbers.

    Raises:
        UserError: a needed flag is missing or unreadable; the message names it.
    """
    values = filled(recipe)
    for key in ("tp", "pp", "cp", "ep", "mbs", "gbs", "seq_len", "num_layers", "hidden", "heads", "ffn"):
        if key != "ffn" or values[key] is not None:
            required(values, key)
    values["num_experts"] = values["num_experts"] or None
    values |= _cluster(cluster)
    values |= _environment(recipe.environment, values["attention_backend"])
    values |= _versions(recipe.versions)
    values |= _model(values, values["vocab_size"] or values["padded_vocab_size"] or _known_vocabulary(recipe))
    values |= _grid(values, cluster.n_gpus, stated=recipe.settings)
    values |= _pipeline(values)
    values |= _recompute(values)
    values |= _precision(values, stated=recipe.settings)
    return values


def _cluster(cluster: ClusterSpec) -> dict[str, Any]:
    accelerator = cluster.accelerator
    return {
        "world_size": cluster.n_gpus,
        "nodes": cluster.nodes,
        "nvlink_domain": min(accelerator.domain_gpus, cluster.n_gpus),
        "interconnect": cluster.interconnect,
        "gpu_arch_major": accelerator.arch_major,
        "host_link_gbps": accelerator.host_bytes_per_s / 1e9,
        "stack": "megatron_lm",
    }


def _environment(env: Mapping[str, str], attention_backend: str) -> dict[str, Any]:
    allocator = env.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + env.get("PYTORCH_ALLOC_CONF", "")
    fused = attention_backend not in ("unfused", "local")
    if env.get("NVTE_FUSED_ATTN") == "0" and env.get("NVTE_FLASH_ATTN") == "0":
        fused = False
    margins = (env.get(f"NVTE_{side}_LAYERNORM_SM_MARGIN", "0") for side in ("FWD", "BWD"))
    return {
        "expandable_segments": "expandable_segments:True" in allocator.replace(" ", ""),
        "cdmc": env.get("CUDA_DEVICE_MAX_CONNECTIONS"),
        "nccl_nvls": env.get("NCCL_NVLS_ENABLE"),
        "nccl_graph_register": env.get("NCCL_GRAPH_REGISTER"),
        "nvte_cpu_offload_v1": env.get("NVTE_CPU_OFFLOAD_V1") == "1",
        "avoid_record_streams": env.get("TORCH_NCCL_AVOID_RECORD_STREAMS") == "1",
        "sm_margin": any(margin.strip() not in ("", "0") for margin in margins),
        "fused_attention": fused,
        "kv_backend_fused": fused,
    }


def _versions(named: Mapping[str, str]) -> dict[str, Any]:
    """Versions by library as tuples; ``mcore``, ``torch_version`` and ``te_version`` always have a value."""
    read = versions(named)
    known = {**DEFAULT_VERSIONS, **read}
    return {**read, "mcore": known["mcore"], "torch_version": known["torch"], "te_version": known["te"]}


def _known_vocabulary(recipe: Recipe) -> int:
    """The vocabulary of the model the recipe describes without stating it, 0 where it describes none."""
    try:
        return shape_of(recipe).vocab
    except UserError:
        return 0


def _model(values: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    """Widths the stack derives, and flags that only matter for what the model has."""
    hidden, heads = values["hidden"], values["heads"]
    ffn = values["ffn"] or (int((4 * hidden * 2 / 3) / 64) * 64 if values["swiglu"] else 4 * hidden)
    padding = required(values, "make_vocab_size_divisible_by") * values["tp"]
    dense = leading_dense_layers(str(values["moe_layer_freq"]), values["num_layers"]) if values["num_experts"] else 0
    comm_types = values["cp_comm_type"]
    return {
        "ffn": ffn,
        "moe_ffn": values["moe_ffn"] or ffn,
        "kv_groups": values["kv_groups"] if values["gqa"] else heads,
        "max_pos": values["max_pos"] or values["seq_len"],
        "vocab_padded": values["padded_vocab_size"] or -(-vocab // padding) * padding,
        "moe_layer_all": dense == 0,
        "rope_type": values["rope_type"] or ("yarn" if values["mla"] else "rope"),
        "cp_comm_types": comm_types if isinstance(comm_types, tuple) else tuple(str(comm_types).split()),
        "hierarchical_cp": _numbers(values["hierarchical_cp"]),
        "use_dist_ckpt": values["ckpt_format"] != "torch",
    }


def _numbers(words: tuple[str, ...] | None) -> tuple[int, ...] | None:
    try:
        return None if words is None else tuple(int(word) for word in words)
    except ValueError as error:
        raise UserError(f"--hierarchical-context-parallel-sizes {' '.join(words or ())}: give whole numbers") from error


def _grid(values: Mapping[str, Any], n_gpus: int, *, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Parallel sizes and the batch arithmetic that follows; ``dp`` is 0 when the grid is larger than the cluster."""
    tp, mbs, gbs = values["tp"], values["mbs"], values["gbs"]
    dp = n_gpus // (tp * values["pp"] * values["cp"])
    inherited = tp if values["num_experts"] else 1
    return {
        "etp": values["etp"] or inherited,
        "etp_stated": bool(values["etp"]),
        "sequence_parallel": bool(values["sequence_parallel"]) and tp > 1,
        "sequence_parallel_stated": bool(values["sequence_parallel"]),
        "dp": dp,
        "num_microbatches": gbs // (mbs * max(dp, 1)),
        "eval_gbs": values["eval_gbs"] or gbs,
        "eval_mbs": values["eval_mbs"] or mbs,
        "order_pp_last": not values["use_tp_pp_dp_mapping"],
        # The backend is read by the flex dispatcher only; elsewhere it counts when somebody wrote it.
        "flex_backend": values["flex_backend"] if values["dispatcher"] == "flex" else stated.get("flex_backend"),
    }


def _pipeline(values: Mapping[str, Any]) -> dict[str, Any]:
    """The split over stages. The parser drops P2P overlap without interleaving."""
    try:
        split = stage_layers(values)
    except ValueError as error:
        raise UserError(f"--pipeline-model-parallel-layout: {error}") from error
    chunks = _virtual_stages(values)
    interleaved = chunks if chunks and chunks > 1 else None
    return {
        "vpp": interleaved,
        "vstages_per_rank": values["vpp"],
        "stage_layers": split,
        "overlap_p2p_comm": bool(values["overlap_p2p_comm"] and interleaved),
    }


def _virtual_stages(values: Mapping[str, Any]) -> int | None:
    """Model chunks per rank from whichever spelling is used."""
    pp, per_chunk = values["pp"], values["layers_per_vstage"]
    if values["pp_layout"] is not None:
        return layouts.stages(values["pp_layout"]) // int(pp)
    if per_chunk:
        return int(_counted_layers(values) // pp // per_chunk)
    return None if values["vpp"] is None else int(values["vpp"])


def _counted_layers(values: Mapping[str, Any]) -> int:
    """Layers as the splitter counts them: embedding and loss may count as one each."""
    return int(values["num_layers"]) + bool(values["account_embedding"]) + bool(values["account_loss"])


def stage_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Decoder layers on each pipeline stage, () when they do not split legally.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_block.py ``get_num_layers_to_build``.

    Raises:
        ValueError: the layout string cannot be read.
    """
    pp, layers = values["pp"], values["num_layers"]
    if values["pp_layout"] is not None:
        legal = layouts.stages(values["pp_layout"]) % pp == 0
        return layouts.layers_per_rank(values["pp_layout"], pp) if legal else ()
    ends = (values["first_stage_layers"], values["last_stage_layers"])
    if ends == (None, None):
        share, rest = divmod(_counted_layers(values), pp)
        split = [share] * pp
        split[0] -= bool(values["account_embedding"])
        split[-1] -= bool(values["account_loss"])
        return tuple(split) if not rest and min(split) >= 0 else ()
    middle, middle_stages = layers - sum(end or 0 for end in ends), pp - sum(end is not None for end in ends)
    if not layouts.splits_evenly(middle, middle_stages):
        return ()
    first, last = ([] if end is None else [end] for end in ends)
    return (*first, *[middle // max(middle_stages, 1)] * middle_stages, *last)


def _recompute(values: Mapping[str, Any]) -> dict[str, Any]:
    """Recomputation as it acts: modules count only where the granularity is selective."""
    granularity, modules = values["recompute_granularity"], values["recompute_modules"] or ()
    if values["moe_layer_recompute"] and granularity is None:
        granularity, modules = "selective", ("moe",)
    if granularity != "selective":
        modules = ()
    narrow_or_broad = 2 if _BROAD_MODULES & set(modules) else 1
    level = 3 if granularity == "full" else narrow_or_broad if modules else 0
    return {"recompute_granularity": granularity, "recompute_modules": modules, "recompute_level": level}


def _precision(values: Mapping[str, Any], *, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Recipes of formats in use, and whether gradients are accumulated and reduced in FP32."""
    reduce_fp32 = values["grad_reduce_in_fp32"]
    if "grad_reduce_in_fp32" not in stated:
        reduce_fp32 = values["main_grads_dtype"] == "fp32"
    return {
        "fp8_recipe": values["fp8_recipe"] if values["fp8"] else None,
        "fp4_recipe": values["fp4_recipe"] if values["fp4"] else None,
        "grad_reduce_in_fp32": bool(reduce_fp32),
        "accumulate_allreduce_grads_in_fp32": bool(reduce_fp32),
    }
