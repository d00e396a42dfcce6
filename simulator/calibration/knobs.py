"""Levers named in the ``knobs`` of a measurement row, as columns of `simulator.job.make_jobs`.

Tables of several frameworks name the same lever differently; here all names meet. Knobs that are in no table below
say where a figure comes from, or turn something the simulator does not price (docs/predict.md lists those).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.calibration.cells import choice, flag, number, whole
from simulator.job import GRAPH_PARTS, Dispatcher, Graph, Offload, Schedule

_ALIASES = {
    "act_cpu_offload_layers": "activation_offload_layers",
    "activation_cpu_offload_layers": "activation_offload_layers",
    "moe_dispatcher": "dispatcher",
    "ep_overlap": "ep_a2a_overlap",
    "delayed_wgrad": "delay_wgrad",
    "async_tp": "tp_comm_overlap",
    "grad_allreduce_overlap": "overlap_grad_reduce",
    "optimizer_cpu_offload": "optimizer_offload",
    "micro_num": "num_microbatches",
    "grad_accum": "num_microbatches",
    "batch_size_per_dp": "local_batch_size_per_dp",
}
_FLAGS = {
    "ep_a2a_overlap": "ep_overlap",
    "delay_wgrad": "delay_wgrad",
    "tp_comm_overlap": "tp_comm_overlap",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "overlap_p2p": "overlap_p2p",
    "moe_permute_fusion": "permute_fusion",
    "moe_router_fusion": "router_fusion",
    "flash_attention": "fused_attention",
    "torch_compile": "compiled",
    "expandable_segments": "expandable_segments",
    "fp8_param_gather": "fp8_param_gather",
    "fp8_dpa": "fp8_attention",
    "cutedsl_fused_grouped_mlp": "fused_experts",
}
_DISPATCHERS = {
    "allgather": Dispatcher.ALLGATHER,
    "alltoall": Dispatcher.ALLTOALL,
    "deepep": Dispatcher.DEEPEP,
    "hybridep": Dispatcher.HYBRIDEP,
}
_SCHEDULES = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved": Schedule.ONE_F_ONE_B,
    "interleaved1f1b": Schedule.ONE_F_ONE_B,
    "gpipe": Schedule.GPIPE,
    "loopedbfs": Schedule.GPIPE,
    "afab": Schedule.GPIPE,
    "zbh1": Schedule.ZB_H1,
    "interleavedzerobubble": Schedule.ZB_H1,
    "zbv": Schedule.ZB_V,
    "zbvzerobubble": Schedule.ZB_V,
    "dualpipe": Schedule.DUALPIPE,
    "dualpipev": Schedule.DUALPIPE_V,
}
"""Names of pipeline schedules in torch, nanotron and papers, in lower case."""
_OFFLOADS = {
    "none": Offload.NONE,
    "core_attn": Offload.CORE_ATTN,
    "attn_proj": Offload.ATTN_PROJ,
    "expert_fc1": Offload.EXPERT_FC1,
    "moe_act": Offload.MOE_ACT,
    "fused_group_mlp": Offload.EXPERT_FC1 | Offload.MOE_ACT,
    "fine-grained": Offload.EXPERT_FC1 | Offload.MOE_ACT,  # the source names no modules; these are its recipes'
}
_ADAPTERS = frozenset({"lora", "peft", "dora"})
_PACKED_SAMPLE = 250
"""Tokens of a sample that fine-tuning benchmarks pack into full sequences.

**Source:** prior for SQuAD, which NeMo's and Megatron-Bridge's fine-tuning recipes use.
"""
_GRAPHED = frozenset({"transformer_engine", "local"})
_FOLDED = {"MCore": False, "TP+EP+DP": False, "FSDP+EP": False, "MCore+Folding": True}
"""Whether expert ranks may lie across the tensor-parallel ones (arXiv 2504.14960)."""


def canonical(knobs: Mapping[str, str]) -> dict[str, str]:
    """``knobs`` under one name each; where a row has a lever under two names the first stays."""
    named: dict[str, str] = {}
    for knob, value in knobs.items():
        named.setdefault(_ALIASES.get(knob, knob), value)
    if "expandable_segments:True" in named.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        named.setdefault("expandable_segments", "1")
    if named.get("overlap", "").startswith("off"):
        named.setdefault("tp_comm_overlap", "0")
        named.setdefault("overlap_p2p", "0")
    if named.get("vpp_comm") == "sync":
        named.setdefault("overlap_p2p", "0")
    if named.get("interleaved_schedule") == "1":
        named.setdefault("pp_schedule", "interleaved")
    return named


def levers(knobs: Mapping[str, str]) -> dict[str, Any]:
    """Columns of the levers that ``knobs`` (`canonical`) name; the others keep the stack's default.

    Raises:
        InvalidCell: a knob that cannot be read.
        Unsupported: a knob whose value the simulator does not price.
    """
    task = knobs.get("task", "").lower()
    found: dict[str, Any] = {
        column: flag(knobs, knob, False) for knob, column in _FLAGS.items() if knobs.get(knob, "") != ""
    }
    if knobs.get("cross_entropy_fusion", "") not in ("", "0", "none"):
        found["cross_entropy_fusion"] = True
    if knobs.get("pp_schedule"):
        found["schedule"] = choice(_SCHEDULES, knobs["pp_schedule"].lower(), "pp_schedule")
    if knobs.get("CUDA_DEVICE_MAX_CONNECTIONS"):
        found["max_connections"] = whole(knobs, "CUDA_DEVICE_MAX_CONNECTIONS")
    if knobs.get("optimizer_offload"):
        found["optimizer_offload"] = _fraction(knobs)
    if knobs.get("activation_offload"):
        found["offload"] = _bits(_OFFLOADS, knobs["activation_offload"], "activation_offload")
    if knobs.get("activation_offload_layers"):
        found["offload"], found["offload_layers"] = Offload.LAYER, whole(knobs, "activation_offload_layers")
    if knobs.get("moe_paged_stash") == "1":  # it stashes what the fused product keeps
        found["fused_experts"] = True
    if knobs.get("mp_mode") == "PURE":
        found["grad_reduce_fp32"] = False
    if task in _ADAPTERS:
        found["frozen"] = True
    if task in _ADAPTERS or task == "sft":
        found["sample_len"] = _PACKED_SAMPLE
    return found | _dispatcher(knobs) | _graph(knobs)


def schedule_is_interleaved(knobs: Mapping[str, str]) -> bool:
    """Whether a row asks for interleaving without saying by how much."""
    return knobs.get("pp_schedule", "").lower().startswith("interleaved")


def folds_experts(knobs: Mapping[str, str]) -> bool:
    """Whether a blank ``etp`` means 1: so set all published recipes of MoE models except those without folding."""
    return _FOLDED.get(knobs.get("method", ""), True)


def _bits(table: Mapping[str, Any], text: str, knob: str) -> int:
    bits = 0
    for part in filter(None, text.split("+")):
        bits |= choice(table, part, knob)
    return bits


def _fraction(knobs: Mapping[str, str]) -> float:
    """Share of the optimizer on the host; yes and no are the whole and nothing."""
    if knobs["optimizer_offload"] in ("true", "True", "false", "False"):
        return float(flag(knobs, "optimizer_offload", False))
    return min(number(knobs, "optimizer_offload", 0.0), 1.0)


def _dispatcher(knobs: Mapping[str, str]) -> dict[str, Dispatcher]:
    text = knobs.get("dispatcher", "").removesuffix("(default)").removeprefix("flex/")
    return {"dispatcher": choice(_DISPATCHERS, text, "dispatcher")} if text else {}


def _graph(knobs: Mapping[str, str]) -> dict[str, int]:
    """Captured parts; a scope that is not named is the whole layer."""
    kind = knobs.get("cuda_graph", "")
    if kind == "full_iteration":
        return {"cuda_graph": int(Graph.FULL_ITERATION)}
    if kind not in _GRAPHED:
        return {"cuda_graph": int(Graph.NONE)} if kind == "none" else {}
    parts = knobs.get("cuda_graph_scope", "full").split("+")
    return {"cuda_graph": _bits(GRAPH_PARTS, "+".join(parts), "cuda_graph_scope")}
