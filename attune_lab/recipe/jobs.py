"""From recipes to the simulator's batch of jobs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.recipe.effective import effective
from attune_lab.recipe.recipe import Recipe
from attune_lab.recipe.shape import shape_of
from simulator.hardware import ClusterSpec
from simulator.job import (
    GRAPH_PARTS,
    RECOMPUTE_MODULES,
    Dispatcher,
    Graph,
    Jobs,
    Offload,
    Precision,
    Recompute,
    make_jobs,
)
from simulator.models import ModelShape

_FP8 = {
    "tensorwise": Precision.FP8_TENSORWISE,
    "delayed": Precision.FP8_DELAYED,
    "blockwise": Precision.FP8_BLOCKWISE,
    "mxfp8": Precision.MXFP8,
}
_DISPATCHER = {
    ("allgather", None): Dispatcher.ALLGATHER,
    ("alltoall", None): Dispatcher.ALLTOALL,
    ("alltoall_seq", None): Dispatcher.ALLTOALL,
    ("flex", "deepep"): Dispatcher.DEEPEP,
    ("flex", "hybridep"): Dispatcher.HYBRIDEP,
}
_OFFLOAD = {
    "core_attn": Offload.CORE_ATTN,
    "attn_proj": Offload.ATTN_PROJ,
    "expert_fc1": Offload.EXPERT_FC1,
    "moe_act": Offload.MOE_ACT,
}
_ZERO_STAGE = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_SAME_NAME = (
    "tp", "pp", "cp", "ep", "etp", "mbs", "gbs", "seq_len", "stage_layers", "sequence_parallel",
    "overlap_grad_reduce", "overlap_param_gather", "ep_overlap", "delay_wgrad", "shared_expert_overlap",
    "grouped_gemm", "cross_entropy_fusion", "fused_attention", "expandable_segments", "avoid_record_streams",
    "sm_margin",
)  # fmt: skip


def jobs_for(recipes: Sequence[Recipe], cluster: ClusterSpec) -> Jobs:
    """One batch with a job per recipe, in order.

    Raises:
        ValueError: no recipes, recipes of different models, or one whose layers do not split over its stages.
        UserError: a recipe lacks a needed flag or uses a format that is not simulated.
    """
    shapes = {shape_of(recipe) for recipe in recipes}
    if len(shapes) != 1:
        raise ValueError(f"a batch holds recipes of one model; these have {len(shapes)}")
    return jobs_from_columns([job_columns(effective(recipe, cluster)) for recipe in recipes], shapes.pop(), cluster)


def jobs_from_columns(rows: Sequence[Mapping[str, Any]], shape: ModelShape, cluster: ClusterSpec) -> Jobs:
    """The batch of jobs whose columns (`job_columns`) are known."""
    splits = [row["stage_layers"] for row in rows]
    stage_layers = np.zeros((len(splits), max(map(len, splits))), dtype=np.int64)
    for stages, split in zip(stage_layers, splits, strict=True):
        stages[: len(split)] = split
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "stage_layers"}
    return make_jobs(shape, cluster, stage_layers=stage_layers, **columns)


def job_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Effective settings as the columns of one job.

    Raises:
        ValueError: the layers do not split over the stages.
        UserError: a number format or dispatcher that is not simulated.
    """
    if not values["stage_layers"]:
        raise ValueError(f"{values['num_layers']} layers do not split over {values['pp']} pipeline stages")
    return {
        **{name: values[name] for name in _SAME_NAME},
        "vpp": values["vpp"] or 1,
        "precision": _precision(values),
        "recompute": _recompute(values),
        "recompute_layers": values["recompute_num_layers"] or 0 if values["recompute_method"] == "block" else 0,
        "dispatcher": _dispatcher(values),
        "cuda_graph": _graph(values),
        "offload": _offload(values),
        "offload_layers": values["cpu_offloading_num_layers"] or 0 if values["cpu_offloading"] else 0,
        "host_tuned": int(values["manual_gc"]),
        "max_connections": int(values["cdmc"]) if (values["cdmc"] or "").isdecimal() else 0,
        "capacity_factor": values["capacity_factor"] or 0.0,
        "tp_comm_overlap": bool(values["tp_comm_overlap"]) and values["tp"] > 1,
        "permute_fusion": values["moe_permute_fusion"],
        "router_fusion": values["moe_router_fusion"],
        "standard_fusions": _standard_fusions(values),
        "fp8_param_gather": bool(values["fp8"] and values["fp8_param_gather"]),
        "overlap_p2p": values["overlap_p2p_comm"],
        "nvls": values["nccl_nvls"] != "0",
        "force_balance": values["force_load_balancing"],
        **_optimizer(values),
    }


def _precision(values: Mapping[str, Any]) -> Precision:
    if values["fp4"]:
        return Precision.NVFP4
    if values["fp8"]:
        if values["fp8_recipe"] not in _FP8:
            raise UserError(f"--fp8-recipe {values['fp8_recipe']} is not simulated; use one of {', '.join(_FP8)}")
        return _FP8[values["fp8_recipe"]]
    return Precision.FP16 if values["fp16"] else Precision.BF16


def _bits(table: Mapping[str, Any], names: Iterable[str], none: Any) -> Any:
    """The union of the named parts; names the simulator has no figure for cost and save nothing."""
    return reduce(operator.or_, (table[name] for name in names if name in table), none)


def _recompute(values: Mapping[str, Any]) -> Recompute:
    if values["recompute_granularity"] == "full":
        return Recompute.FULL
    bits: Recompute = _bits(RECOMPUTE_MODULES, values["recompute_modules"], Recompute.NONE)
    return bits


def _dispatcher(values: Mapping[str, Any]) -> Dispatcher:
    kind, backend = values["dispatcher"], values["flex_backend"]
    found = _DISPATCHER.get((kind, backend if kind == "flex" else None))
    if found is None:
        raise UserError(f"--moe-token-dispatcher-type {kind} with backend {backend} is not simulated; use alltoall")
    return found


def _graph(values: Mapping[str, Any]) -> Graph:
    """An empty module list captures whole layers; only a MoE with experts has a ``moe`` part."""
    if values["cuda_graph_impl"] == "none":
        return Graph.NONE
    if values["cuda_graph_impl"] == "full_iteration":
        return Graph.FULL_ITERATION
    bits: Graph = _bits(GRAPH_PARTS, values["cuda_graph_modules"] or ("full",), Graph.NONE)
    return bits if values["num_experts"] else bits & ~Graph.MOE


def _offload(values: Mapping[str, Any]) -> Offload:
    if values["cpu_offloading"]:
        return Offload.LAYER
    if not values["fine_grained_offload"]:
        return Offload.NONE
    bits: Offload = _bits(_OFFLOAD, values["offload_modules"] or (), Offload.NONE)
    return bits


def _standard_fusions(values: Mapping[str, Any]) -> bool:
    activation = values["bias_swiglu_fusion"] if values["swiglu"] else values["bias_gelu_fusion"]
    return bool(activation and values["bias_dropout_fusion"] and values["gradient_accumulation_fusion"])


def _optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes per parameter and how the state is sharded.

    The precision-aware Adam keeps only the 16 bits of the FP32 copy that the BF16 weight lacks.

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/optimizer/optimizer_config.py (``store_param_remainders``).
    """
    aware = bool(values["use_precision_aware_optimizer"])
    remainders = aware and values["store_param_remainders"] and values["bf16"] and not values["fp8_param_gather"]
    grads = _BYTES[values["main_grads_dtype"]] if aware else 4.0
    fsdp = 3 if values["torch_fsdp2"] else _ZERO_STAGE[values["data_parallel_sharding_strategy"]]
    sharded = values["torch_fsdp2"] or values["megatron_fsdp"]
    main_grad_bytes = min(grads, 4.0 if values["grad_reduce_in_fp32"] else 2.0)
    return {
        "main_grad_bytes": main_grad_bytes,
        "main_param_bytes": 2.0 if remainders else _BYTES[values["main_params_dtype"]] if aware else 4.0,
        "moment_bytes": _moment_bytes(values, aware=aware),
        "grad_reduce_fp32": values["grad_reduce_in_fp32"],
        "bucket_bytes": int((values["bucket_size"] or 0) * main_grad_bytes),
        "zero_stage": fsdp if sharded else int(values["use_distributed_optimizer"]),
        "optimizer_instances": values["num_distopt_instances"],
        "optimizer_offload": values["optimizer_offload_fraction"] if values["optimizer_cpu_offload"] else 0.0,
    }


def _moment_bytes(values: Mapping[str, Any], *, aware: bool) -> float:
    """Bytes of all optimizer moments per parameter: two for Adam, one for momentum methods."""
    if values["optimizer"] != "adam":
        return 4.0
    return _BYTES[values["exp_avg_dtype"]] + _BYTES[values["exp_avg_sq_dtype"]] if aware else 8.0
