"""Published measurement points as jobs: one CSV row names a model, a cluster and a layout.

The columns are those of the measurement schema (docs/predict.md). A blank cell means the stack's default.
Columns that hold measured results are never read here: a prediction that could see its answer is worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware import ClusterSpec, parse_cluster
from simulator.job import DEFAULTS, GRAPH_PARTS, RECOMPUTE_MODULES, Dispatcher, Graph, Precision, Recompute, Schedule
from simulator.models import ModelShape, models
from simulator.stacks import Stack, stack_of

MEASURED_COLUMNS = frozenset(
    {
        "tokens_per_s_per_gpu",
        "model_tflops_per_gpu",
        "step_time_s",
        "mfu",
        "peak_mem_gb",
        "oom",
        "failed",
        "tokens_per_s_per_gpu_std",
    }
)
"""Results; dropped from every row before anything looks at it."""

REQUIRED_COLUMNS = ("model", "accelerator", "n_gpus", "seq_len")

_PRECISIONS = {
    "bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "fp8": Precision.FP8_TENSORWISE,
    "fp8-cs": Precision.FP8_TENSORWISE,
    "fp8-ds": Precision.FP8_DELAYED,
    "fp8-blockwise": Precision.FP8_BLOCKWISE,
    "mxfp8": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
}
_RECOMPUTE_WORDS = {
    **RECOMPUTE_MODULES,
    "norm": Recompute.LAYERNORM,
    "act": Recompute.MOE_ACT,
    "shared_expert": Recompute.SHARED_EXPERTS,
    "per_op": Recompute.LAYERNORM | Recompute.CORE_ATTN,
    "per_op_sac": Recompute.LAYERNORM | Recompute.CORE_ATTN,
}
"""Megatron's module names, and the words other frameworks' pages use."""
_DISPATCHERS = {
    "allgather": Dispatcher.ALLGATHER,
    "alltoall": Dispatcher.ALLTOALL,
    "deepep": Dispatcher.DEEPEP,
    "hybridep": Dispatcher.HYBRIDEP,
}
_SCHEDULES = {
    "1f1b": Schedule.ONE_F_ONE_B,
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
_TRUE, _FALSE = frozenset({"1", "1.0", "true", "True", "yes"}), frozenset({"0", "0.0", "false", "False", "no"})


class InvalidCell(ValueError):
    """A cell that cannot be read; the message names the column and what it needs."""


class Unsupported(ValueError):
    """The row asks for something the simulator does not price; the message says what."""


@dataclass(frozen=True)
class Point:
    """One row, understood: a shape, a cluster, a stack with its version and columns of `simulator.job.make_jobs`."""

    shape: ModelShape
    cluster: ClusterSpec
    stack: Stack
    version: str
    columns: Mapping[str, Any]
    memory_statistic: str


def parse_knobs(text: str) -> dict[str, str]:
    """``k=v;k=v`` as a dictionary; pieces without ``=`` become keys with an empty value."""
    pairs = (piece.partition("=") for piece in text.split(";") if piece.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_point(row: Mapping[str, str]) -> Point:
    """Understand one row. Measured columns are ignored even when present.

    Raises:
        InvalidCell: a cell that cannot be read (names the column).
        Unsupported: a readable row outside what the simulator prices.
    """
    cells = {k: v.strip() for k, v in row.items() if k not in MEASURED_COLUMNS and isinstance(v, str)}
    knobs = parse_knobs(cells.get("knobs", ""))
    shape = _shape(cells, knobs)
    framework, release = cells.get("framework", ""), cells.get("framework_version", "")
    stack = stack_of(framework, release)
    cluster = replace(_cluster(cells, knobs), interconnect=stack.interconnect)
    columns = _columns(cells, knobs, shape, cluster, stack)
    return Point(shape, cluster, stack, f"{framework} {release}".strip(), columns, cells.get("mem_statistic", ""))


def _int(cells: Mapping[str, str], column: str, default: int | None = None) -> int:
    text = cells.get(column, "")
    if text == "":
        if default is None:
            raise Unsupported(f"column '{column}' is blank and has no default")
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= 2**40:
        raise InvalidCell(f"column '{column}' holds '{text[:40]}'; a whole number is needed")
    return int(value)


def _flag(text: str, default: bool, column: str) -> bool:
    if text == "":
        return default
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise InvalidCell(f"column or knob '{column}' holds '{text[:40]}'; 1 or 0 is needed")


def _shape(cells: Mapping[str, str], knobs: Mapping[str, str]) -> ModelShape:
    name = cells.get("model", "")
    known = models().get(name)
    if known is not None:
        mtp = knobs.get("mtp", "")
        shape = replace(known, mtp_layers=_int(knobs, "mtp")) if mtp else replace(known, mtp_layers=0)
    elif cells.get("layers") and cells.get("hidden"):
        shape = _shape_from_columns(name, cells, knobs)
    else:
        raise Unsupported(f"model '{name}' is not in the registry and the row gives no shape columns")
    if knobs.get("hybrid"):
        raise Unsupported(
            f"layers of kind '{knobs['hybrid'][:40]}' are not simulated; Mamba-2 hybrids of the registry are"
        )
    return shape


def _shape_from_columns(name: str, cells: Mapping[str, str], knobs: Mapping[str, str]) -> ModelShape:
    hidden, heads = _int(cells, "hidden"), _int(cells, "heads")
    mla = knobs.get("attention") == "mla"
    experts = _int(cells, "experts", 0)
    return ModelShape(
        name=name or "custom",
        layers=_int(cells, "layers"),
        hidden=hidden,
        ffn=_int(cells, "ffn", 4 * hidden),
        heads=heads,
        kv_heads=_int(cells, "kv_heads", heads),
        head_dim=_int(cells, "head_dim", hidden // max(heads, 1)),
        vocab=_int(cells, "vocab", 51200),
        attention="mla" if mla else "gqa",
        q_lora_rank=_int(knobs, "q_lora_rank", 0),
        kv_lora_rank=_int(knobs, "kv_lora_rank", 0),
        qk_nope_dim=_int(knobs, "qk_nope_head_dim", 0),
        qk_rope_dim=_int(knobs, "qk_rope_head_dim", 0),
        v_dim=_int(knobs, "v_head_dim", 0),
        gated_mlp=knobs.get("activation", "swiglu") == "swiglu",
        experts=experts,
        top_k=_int(cells, "top_k", 2 if experts else 0),
        moe_ffn=_int(cells, "moe_ffn", _int(cells, "ffn", 0) if experts else 0),
        shared_ffn=_int(cells, "shared_ffn", 0),
        first_dense_layers=_int(knobs, "dense_layers", 0),
        mtp_layers=_int(knobs, "mtp", 0),
        tied_embeddings=_flag(cells.get("tied_embeddings", ""), False, "tied_embeddings"),
    )


def _cluster(cells: Mapping[str, str], knobs: Mapping[str, str]) -> ClusterSpec:
    gpus = _int(cells, "n_gpus")
    try:
        spec = parse_cluster(f"{gpus}x{cells.get('accelerator', '')}")
    except ValueError as error:
        raise Unsupported(str(error)) from error
    per_node = _int(cells, "gpus_per_node", spec.gpus_per_node)
    accelerator = spec.accelerator
    if knobs.get("inter_node", "").endswith("Gbps"):  # stated for the whole node
        rate = _rate(knobs, "inter_node", "Gbps") * 1e9 / 8 / max(per_node, 1)
        accelerator = replace(accelerator, nic_bytes_per_s=rate)
    if knobs.get("intra_node", "").endswith("GB/s"):
        accelerator = replace(accelerator, link_bytes_per_s=_rate(knobs, "intra_node", "GB/s") * 1e9)
    return replace(spec, accelerator=accelerator, gpus_per_node=max(per_node, 1))


def _rate(knobs: Mapping[str, str], knob: str, unit: str) -> float:
    try:
        rate = float(knobs[knob].removesuffix(unit))
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise InvalidCell(f"knob '{knob}' holds '{knobs[knob][:40]}'; a rate above 0 such as 400{unit} is needed")
    return rate


def _columns(
    cells: Mapping[str, str], knobs: Mapping[str, str], shape: ModelShape, cluster: ClusterSpec, stack: Stack
) -> dict[str, Any]:
    layout = {key: _int(cells, key, 1) for key in ("tp", "pp", "cp", "ep", "mbs")}
    layout = {key: max(value, 1) for key, value in layout.items()}
    layout["vpp"] = max(_int(cells, "vp", 1), 1)
    layout["etp"] = max(_int(cells, "etp", _default_etp(layout, shape, cluster)), 1)
    _check_grid(layout, shape, cluster)
    dp = cluster.n_gpus // (layout["tp"] * layout["pp"] * layout["cp"])
    accumulation = _int(knobs, "num_microbatches", _int(knobs, "grad_accum", 1))
    gbs = _int(cells, "gbs", layout["mbs"] * dp * accumulation)
    if gbs < layout["mbs"] * dp:
        raise Unsupported(f"gbs {gbs} is below mbs x dp = {layout['mbs'] * dp}: no whole micro-batch per rank")
    recompute, recompute_layers = _recompute(cells.get("recompute", ""), knobs, layout, shape)
    default = {**DEFAULTS, **stack.defaults}
    sequence_parallel = _flag(cells.get("sequence_parallel", ""), default["sequence_parallel"], "sequence_parallel")
    return {
        **stack.defaults,
        **(stack.pipelined if layout["pp"] > 1 else {}),
        **layout,
        "gbs": gbs,
        "seq_len": _int(cells, "seq_len"),
        "precision": _choice(_PRECISIONS, cells.get("precision", "") or "bf16", "precision"),
        "recompute": recompute,
        "recompute_layers": recompute_layers,
        "zero_stage": _int(cells, "zero_stage", default["zero_stage"]),
        "sequence_parallel": sequence_parallel and layout["tp"] > 1,
        "force_balance": cells.get("routing", "") in ("forced_balance", "token_drop"),
        "capacity_factor": 1.0 if cells.get("routing", "") == "token_drop" else 0.0,
        **_levers(knobs),
    }


def _choice(table: Mapping[str, Any], text: str, column: str) -> Any:
    if text not in table:
        raise Unsupported(f"{column} '{text[:40]}' is not one of {', '.join(sorted(table))}")
    return table[text]


def _default_etp(layout: Mapping[str, int], shape: ModelShape, cluster: ClusterSpec) -> int:
    """Megatron lets ETP inherit TP; where that grid cannot be built the run must have set 1."""
    if not shape.experts or cluster.n_gpus % (layout["tp"] * layout["ep"] * layout["pp"]):
        return 1
    return layout["tp"]


def _check_grid(layout: Mapping[str, int], shape: ModelShape, cluster: ClusterSpec) -> None:
    dense = layout["tp"] * layout["pp"] * layout["cp"]
    expert = layout["etp"] * layout["ep"] * layout["pp"]
    if cluster.n_gpus % dense:
        raise Unsupported(f"tp x pp x cp = {dense} does not divide {cluster.n_gpus} GPUs")
    if shape.experts and cluster.n_gpus % expert:
        raise Unsupported(f"etp x ep x pp = {expert} does not divide {cluster.n_gpus} GPUs")
    if shape.experts % max(layout["ep"], 1):
        raise Unsupported(f"{shape.experts} experts are not a multiple of ep {layout['ep']}")
    if layout["pp"] * layout["vpp"] > shape.layers + 2:
        raise Unsupported(f"pp x vpp = {layout['pp'] * layout['vpp']} exceeds the {shape.layers} layers")


def _recompute(
    text: str, knobs: Mapping[str, str], layout: Mapping[str, int], shape: ModelShape
) -> tuple[Recompute, int]:
    kind, _, modules = text.partition(":")
    if kind == "full":
        layers = _int(knobs, "recompute_num_layers", 0) if knobs.get("recompute_method") == "block" else 0
        return Recompute.FULL, layers
    if kind != "selective":
        return Recompute.NONE, 0
    if modules == "every_other_layer":
        return Recompute.FULL, max(shape.layers // layout["pp"] // layout["vpp"] // 2, 1)
    bits = Recompute.NONE
    for module in filter(None, (modules or "core_attn").split("+")):
        bits |= _choice(_RECOMPUTE_WORDS, module, "recompute module")
    return bits, 0


def _levers(knobs: Mapping[str, str]) -> dict[str, Any]:
    """Levers named in ``knobs``; those not named keep the simulator's defaults."""
    levers: dict[str, Any] = {}
    renamed = {
        "ep_a2a_overlap": "ep_overlap",
        "delay_wgrad": "delay_wgrad",
        "tp_comm_overlap": "tp_comm_overlap",
        "async_tp": "tp_comm_overlap",
        "overlap_grad_reduce": "overlap_grad_reduce",
        "overlap_param_gather": "overlap_param_gather",
        "moe_permute_fusion": "permute_fusion",
        "flash_attention": "fused_attention",
        "torch_compile": "compiled",
    }
    for knob, column in renamed.items():
        if knobs.get(knob):
            levers[column] = _flag(knobs[knob], False, knob)
    if knobs.get("cross_entropy_fusion", "") not in ("", "0", "none"):
        levers["cross_entropy_fusion"] = True
    if knobs.get("pp_schedule"):
        levers["schedule"] = _choice(_SCHEDULES, knobs["pp_schedule"].lower(), "pp_schedule")
    dispatcher = (knobs.get("dispatcher") or knobs.get("moe_dispatcher", "")).removesuffix("(default)")
    dispatcher = dispatcher.removeprefix("flex/")
    if dispatcher in _DISPATCHERS:
        levers["dispatcher"] = _DISPATCHERS[dispatcher]
    if knobs.get("cuda_graph", "") == "full_iteration":
        levers["cuda_graph"] = Graph.FULL_ITERATION
    elif knobs.get("cuda_graph", "") in ("transformer_engine", "local"):
        parts = knobs.get("cuda_graph_scope", "attn").split("+")
        levers["cuda_graph"] = sum(GRAPH_PARTS.get(part, Graph.NONE) for part in parts)
    return levers
