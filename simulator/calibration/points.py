"""Published measurement points as jobs: one CSV row names a model, a cluster and a layout.

The columns are those of the measurement schema (docs/predict.md). A blank cell means the stack's default.
Columns that hold measured results are never read here: a prediction that could see its answer is worth nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.calibration.cells import (
    InvalidCell,
    Unsupported,
    choice,
    flag,
    number,
    parse_knobs,
    positive,
    whole,
)
from simulator.calibration.knobs import canonical, folds_experts, levers, schedule_is_interleaved
from simulator.calibration.shapes import row_shape
from simulator.calibration.splits import leaves_idle_stages, split_by_cost, split_by_layout, split_layers
from simulator.hardware import MAX_GPUS, ClusterSpec, cluster_of, find_accelerator
from simulator.job import DEFAULTS, RECOMPUTE_MODULES, Precision, Recompute
from simulator.models import ModelShape
from simulator.stacks import Stack, stack_of

__all__ = [
    "MEASURED_COLUMNS",
    "REQUIRED_COLUMNS",
    "InvalidCell",
    "Point",
    "Unsupported",
    "parse_knobs",
    "parse_point",
]

MEASURED_COLUMNS = frozenset(
    {
        "tokens_per_s_per_gpu",
        "model_tflops_per_gpu",
        "step_time_s",
        "mfu",
        "peak_mem_gb",
        "reserved_gb",
        "device_gb",
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
    "fp8": Precision.FP8_DELAYED,  # recipe not said: the default of Transformer Engine
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
}
"""Megatron's module names, and the words other frameworks' pages use."""
_HALF = frozenset({"every_other_layer", "per_op", "per_op_sac"})
"""torchtitan's modes: every other layer; or, in every layer, all but attention and every other matrix product, which
costs and keeps as much (pytorch/torchtitan@b5bcd76 docs/performance.md: 1,914 and 1,904 of 2,162 tokens/s)."""
_FILLED = 4  # micro-batches a stage of a pipeline whose batch is not published; with one, nobody would run it
_UNNAMED_ACCELERATORS = {"Blackwell (184 GiB class, not named)": "GB200-NVL72"}
"""Parts that a source does not name: four in a host with 184 GiB each are those of a GB200 tray."""
_NETWORK = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)Gb(?:ps|/s)?(\w*)")
_LEAST_RATE = 1e-3  # slower links are typing errors
_TENSOR_MODES = {"ALL_REDUCE": False, "REDUCE_SCATTER": True}
"""nanotron's words for tensor parallelism without and with sequence parallelism."""
_CORRECTED = {
    "vtrain_single": {
        "framework": "vTrain trace",
        "recompute": "none",
        "vocab": "50257",
        "tied_embeddings": "true",
    },
    "vtrain_multi": {"knobs": "pp_schedule=1f1b;inter_node=800Gbps"},
}
"""What the rows of a source state wrongly or leave out.

vTrain's single-node times are no measured steps: they are sums of the times of one layer, one head and one optimizer
step to 6e-6, as its predictor composes them from a kernel trace (VIA-Research/vTrain@f8dda84 src/predictor.py;
vocabulary: src/config.py). Nothing is recomputed in them: first and last stages take the same time for a layer, which
the predictor's recomputation spares the last one, and recomputation would mean 75 % of the peak at a hidden size of
2,048 without fused attention. The 150 GB/s inside a node are a setting of that predictor, not of the measured nodes.
"""
_SHARDED = ("megatron_fsdp", "fsdp2", "fsdp")
_MAX_CHUNKS = 1024  # more than any published pipeline has stages
_INTERLEAVED = 2  # chunks a stage where a row says interleaved and no more: the fewest there can be


@dataclass(frozen=True)
class Point:
    """One row, understood: a shape, a cluster, a stack with its version and columns of `simulator.job.make_jobs`.

    ``layout_stated``: the row says how the model is split; ``recompute_stated``: what is recomputed.
    ``warning``: why such a job does not start although it may fit; blank as a rule.
    """

    shape: ModelShape
    cluster: ClusterSpec
    stack: Stack
    version: str
    columns: Mapping[str, Any]
    memory_statistic: str
    layout_stated: bool
    recompute_stated: bool
    warning: str = ""


def parse_point(row: Mapping[str, str]) -> Point:
    """Understand one row. Measured columns are ignored even when present.

    Raises:
        InvalidCell: a cell that cannot be read (names the column).
        Unsupported: a readable row outside what the simulator prices.
    """
    cells = {k: v.strip() for k, v in row.items() if k not in MEASURED_COLUMNS and isinstance(v, str)}
    cells |= _CORRECTED.get(cells.get("source_id", ""), {})
    knobs = canonical(parse_knobs(cells.get("knobs", "")))
    shape = row_shape(cells, knobs)
    framework, release = cells.get("framework", ""), cells.get("framework_version", "")
    stack = stack_of(framework, release)
    cluster = replace(_cluster(cells, knobs), interconnect=stack.interconnect)
    columns = _columns(cells, knobs, shape, cluster, stack)
    printed = cells.get("mem_statistic", "")
    statistic = printed if printed in ("allocated", "reserved", "nvidia_smi") else stack.memory_statistic
    idle = stack.splits_by_cost and leaves_idle_stages(shape, columns["pp"])
    warning = f"{stack.name} places no block on the last of {columns['pp']} stages and does not start" if idle else ""
    version, stated = f"{framework} {release}".strip(), cells.get("recompute") != "unknown"
    return Point(shape, cluster, stack, version, columns, statistic, _states_layout(cells, columns), stated, warning)


def _states_layout(cells: Mapping[str, str], columns: Mapping[str, Any]) -> bool:
    named = any(cells.get(column) for column in ("tp", "pp", "ep", "zero_stage"))
    return named or columns["cp"] > 1 or columns["zero_stage"] == 3


def _cluster(cells: Mapping[str, str], knobs: Mapping[str, str]) -> ClusterSpec:
    """GPUs and links of a row. What it states of links and hosts replaces what the accelerator usually has."""
    degrees = [whole(cells, column, 0) for column in ("tp", "pp", "cp", "dp")]
    stated = degrees[0] * degrees[1] * max(degrees[2], 1) * degrees[3]
    gpus = whole(cells, "n_gpus", stated or None)
    name = cells.get("accelerator", "")
    if not name:
        raise Unsupported("column 'accelerator' is blank and has no default")
    if not 1 <= gpus <= MAX_GPUS:
        raise InvalidCell(f"column 'n_gpus' holds {gpus}; between 1 and {MAX_GPUS} are needed")
    try:
        accelerator = find_accelerator(_UNNAMED_ACCELERATORS.get(name, name))
    except ValueError as error:
        raise Unsupported(str(error)) from error
    cluster = cluster_of(accelerator, gpus, whole(cells, "gpus_per_node", 0))
    accelerator = replace(accelerator, domain_gpus=positive(knobs, "nvlink_domain", accelerator.domain_gpus))
    if knobs.get("inter_node"):
        rate, nics = _network(knobs["inter_node"], cluster.gpus_per_node)
        # NICs are the accelerator's usual ones where their number is not stated.
        sharing = cluster.gpus_per_node / nics if nics else accelerator.nic_bytes_per_s / rate
        cluster = replace(cluster, gpus_per_nic=max(round(sharing), 1))
        accelerator = replace(accelerator, nic_bytes_per_s=rate)
    if knobs.get("intra_node"):
        link = number({"intra_node": knobs["intra_node"].removesuffix("GB/s")}, "intra_node", 0.0)
        if link < _LEAST_RATE:
            raise InvalidCell(f"knob 'intra_node' holds {link:g}; a rate above 0 such as 300GB/s is needed")
        accelerator = replace(accelerator, link_bytes_per_s=link * 1e9)
    return replace(cluster, accelerator=accelerator)


def _network(text: str, gpus_per_node: int) -> tuple[float, int]:
    """Bytes per second and GPU of ``800Gbps``, ``4x100Gb_RoCE`` (a node's) or ``400Gbps_RDMA_per_gpu``, and the NICs
    of a node, 0 where they are not stated."""
    found = _NETWORK.fullmatch(text)
    nics = int(found[1] or 0) if found else 0
    rate = float(found[2]) * max(nics, 1) if found else 0.0
    if found is None or not _LEAST_RATE <= rate < 1e6:
        raise InvalidCell(f"knob 'inter_node' holds '{text[:40]}'; a rate above 0 such as 400Gbps is needed")
    return rate * 1e9 / 8 / (1 if found[3].endswith("per_gpu") else gpus_per_node), nics


def _columns(
    cells: Mapping[str, str], knobs: Mapping[str, str], shape: ModelShape, cluster: ClusterSpec, stack: Stack
) -> dict[str, Any]:
    default = {**DEFAULTS, **stack.defaults}
    layout = {key: positive(cells, key, 1) for key in ("tp", "pp", "cp", "ep")}
    layout["etp"] = positive(cells, "etp", 1 if folds_experts(knobs) else layout["tp"])
    layout |= _stages(cells, knobs, shape, stack, layout["pp"])
    _check_grid(layout, shape, cluster)
    dp = cluster.n_gpus // (layout["tp"] * layout["pp"] * layout["cp"])
    layout |= _batch(cells, knobs, layout["pp"], dp)
    recompute, recompute_layers = _recompute(cells, knobs, layout, shape, stack)
    scattered = _TENSOR_MODES.get(knobs.get("tp_mode", ""), default["sequence_parallel"])
    zero_stage = _zero_stage(cells, knobs, default["zero_stage"])
    if stack.whole_in_pipeline and layout["pp"] > 1:
        zero_stage = min(zero_stage, 1)
    return {
        **stack.columns(cluster.n_gpus, layout["tp"], layout["pp"], zero_stage),
        **layout,
        "seq_len": positive(cells, "seq_len"),
        "precision": choice(_PRECISIONS, cells.get("precision", "") or "bf16", "precision"),
        "recompute": recompute,
        "recompute_layers": recompute_layers,
        "zero_stage": zero_stage,
        "optimizer_instances": _instances(knobs, dp, layout["cp"]),
        "sequence_parallel": flag(cells, "sequence_parallel", scattered) and layout["tp"] > 1,
        # Published speed runs force even routing; a row that does not says so.
        "force_balance": cells.get("routing", "") != "natural",
        # User buffers overlap the linear layers of dense models only.
        "tp_comm_overlap": default["tp_comm_overlap"] and not shape.experts,
        "capacity_factor": _capacity(cells, knobs),
        **levers(knobs),
    }


def _stages(
    cells: Mapping[str, str], knobs: Mapping[str, str], shape: ModelShape, stack: Stack, pp: int
) -> dict[str, Any]:
    """Virtual stages and layers of each stage."""
    vpp = positive(cells, "vp", _chunks(knobs, shape, stack, pp)) if pp > 1 else 1
    if pp * vpp > _MAX_CHUNKS:
        raise Unsupported(f"pp x vpp = {pp * vpp}: more than {_MAX_CHUNKS} stages are not simulated")
    if knobs.get("pp_layout"):
        layers, vpp = split_by_layout(knobs["pp_layout"], pp)
        if sum(layers) != shape.layers:
            raise InvalidCell(f"knob 'pp_layout' places {sum(layers)} layers where the model has {shape.layers}")
    elif stack.splits_by_cost:
        layers = split_by_cost(shape, pp)
    else:
        if pp * vpp > shape.layers + 2:
            raise Unsupported(f"pp x vpp = {pp * vpp} exceeds the {shape.layers} layers")
        layers = split_layers(shape, pp, vpp)
    return {"vpp": vpp, "stage_layers": layers}


def _chunks(knobs: Mapping[str, str], shape: ModelShape, stack: Stack, pp: int) -> int:
    """Virtual stages where a row does not count them."""
    if schedule_is_interleaved(knobs):
        return _INTERLEAVED
    single = stack.interleaves and not knobs.get("task") and shape.layers % pp == 0
    return shape.layers // pp if single else 1


def _check_grid(layout: Mapping[str, Any], shape: ModelShape, cluster: ClusterSpec) -> None:
    dense = layout["tp"] * layout["pp"] * layout["cp"]
    expert = layout["etp"] * layout["ep"] * layout["pp"]
    if cluster.n_gpus % dense:
        raise Unsupported(f"tp x pp x cp = {dense} does not divide {cluster.n_gpus} GPUs")
    if shape.experts and cluster.n_gpus % expert:
        raise Unsupported(f"etp x ep x pp = {expert} does not divide {cluster.n_gpus} GPUs")
    if shape.experts % layout["ep"]:
        raise Unsupported(f"{shape.experts} experts are not a multiple of ep {layout['ep']}")


def _batch(cells: Mapping[str, str], knobs: Mapping[str, str], pp: int, dp: int) -> dict[str, int]:
    """Sequences per micro-batch and step. Of a rank's batch a pipeline makes as many micro-batches as it has stages.

    **Source:** pytorch/torchtitan@b5bcd76 ``pipeline_parallel_microbatches``, by default the pipeline's degree.
    """
    local = positive(knobs, "local_batch_size_per_dp", 1)
    mbs = positive(cells, "mbs", max(local // pp, 1))
    filled = local // mbs if "local_batch_size_per_dp" in knobs else _FILLED * pp if pp > 1 else 1
    accumulation = positive(knobs, "num_microbatches", max(filled, 1))
    gbs = whole(cells, "gbs", mbs * dp * accumulation)
    if gbs == 0 or gbs % (mbs * dp):
        raise Unsupported(f"gbs {gbs} is no multiple of mbs x dp = {mbs * dp}: no whole micro-batches on a rank")
    return {"mbs": mbs, "gbs": gbs}


def _zero_stage(cells: Mapping[str, str], knobs: Mapping[str, str], default: int) -> int:
    """What is sharded over data-parallel ranks; where the column is blank, what the knobs imply."""
    if any(knobs.get(knob, "0") != "0" for knob in _SHARDED) or knobs.get("sharding_strategy") == "FULL_SHARD":
        default = 3
    elif knobs.get("distributed_optimizer") == "1":
        default = 1
    return whole(cells, "zero_stage", default)


def _instances(knobs: Mapping[str, str], dp: int, cp: int) -> int:
    """Copies of the sharded state, where it is sharded over fewer than all ranks that hold the same weights.

    torchtitan's ``fsdp_degree`` counts data-parallel ranks; its shards lie across context parallelism too.
    """
    if knobs.get("fsdp_degree"):
        return max(dp // positive(knobs, "fsdp_degree"), 1)
    for knob in ("zero1_shard_group", "hsdp_domain"):
        if knobs.get(knob, "-1") != "-1":
            return max(dp * cp // positive(knobs, knob), 1)
    return 1


def _capacity(cells: Mapping[str, str], knobs: Mapping[str, str]) -> float:
    """Expert capacity factor; a stash that keeps only the tokens that came needs none (0)."""
    if flag(knobs, "moe_paged_stash", False):
        return 0.0
    stated = {"capacity_factor": knobs.get("capacity_factor", "").partition("(")[0]}
    return number(stated, "capacity_factor", 1.0 if cells.get("routing") == "token_drop" else 0.0)


def _recompute(
    cells: Mapping[str, str], knobs: Mapping[str, str], layout: Mapping[str, Any], shape: ModelShape, stack: Stack
) -> tuple[Recompute, int]:
    """What is recomputed, and of how many layers a chunk (0: all); the stack's default where the row does not say."""
    asked = cells.get("recompute", "")
    if asked in ("", "unknown"):
        asked = stack.recomputes
    kind, _, modules = asked.partition(":")
    if kind == "full":
        layers = whole(knobs, "recompute_num_layers", 0) if knobs.get("recompute_method") == "block" else 0
        return Recompute.FULL, layers
    if kind != "selective":
        return Recompute.NONE, 0
    if modules in _HALF:
        return Recompute.FULL, max(shape.layers // layout["pp"] // layout["vpp"] // 2, 1)
    bits = Recompute.NONE
    for module in filter(None, (modules or "core_attn").split("+")):
        bits |= choice(_RECOMPUTE_WORDS, module, "recompute module")
    return bits, 0
