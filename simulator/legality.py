"""Which combinations of parallel sizes and levers a stack accepts.

A rule is a function whose parameters are columns of `Jobs`, besides ``model`` and ``gpus``; it is true where the
combination may run. Columns may be arrays of one length or numbers.

**Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py (``validate_args``), core/parallel_state.py,
core/transformer/transformer_config.py, core/pipeline_parallel/schedules.py; DualPipe: arXiv 2412.19437.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.job import Bools, Dispatcher, Graph, Ints, Recompute, Schedule, has
from simulator.models import ModelShape, layer_kinds

Rule = Callable[..., Bools]


def legal(
    columns: Mapping[str, NDArray[Any]], model: ModelShape, gpus: int, *, about: Collection[str] | None = None
) -> Bools:
    """Where no rule over these columns is broken, shape of the columns.

    Args:
        columns: columns of `Jobs` by name; rules that need others are not looked at.
        model, gpus: what is trained, on how many accelerators.
        about: look only at rules that have one of these columns.
    """
    known = {**columns, "model": model, "gpus": gpus}
    held: Bools = np.ones(np.broadcast_shapes(*(np.shape(column) for column in columns.values())), dtype=np.bool_)
    for rule, names in _NEEDS.items():
        if names <= known.keys() and (about is None or not names.isdisjoint(about)):
            held &= rule(**{name: known[name] for name in names})
    return held


def _data_parallel(gpus: int, pp: Ints, tp: Ints, cp: Ints) -> Ints:
    size: Ints = np.maximum(gpus // (pp * tp * cp), 1)
    return size


def _meshes_fill_the_cluster(pp: Ints, tp: Ints, cp: Ints, gpus: int) -> Bools:
    held: Bools = np.equal(gpus % (pp * tp * cp), 0)
    return held


def _expert_meshes_fill_the_cluster(pp: Ints, ep: Ints, etp: Ints, gpus: int) -> Bools:
    held: Bools = np.equal(gpus % (pp * ep * etp), 0)
    return held


def _stages_have_layers(pp: Ints, vpp: Ints, model: ModelShape) -> Bools:
    held: Bools = np.less_equal(pp * vpp, model.layers)
    return held


def _tensor_parallel_divides(tp: Ints, model: ModelShape) -> Bools:
    width = model.ffn if layer_kinds(model).dense else 0
    heads = model.kv_heads
    groups = (heads % tp == 0) | (tp % heads == 0)
    held: Bools = groups & (model.heads % tp == 0) & (width % tp == 0) & (model.shared_ffn % tp == 0)
    return held


def _experts_divide(ep: Ints, etp: Ints, model: ModelShape) -> Bools:
    held: Bools = (model.experts % ep == 0) & (model.moe_ffn % etp == 0) if model.experts else np.equal(ep * etp, 1)
    return held


def _sequence_divides(tp: Ints, cp: Ints, seq_len: Ints) -> Bools:
    held: Bools = ((cp == 1) | (seq_len % (2 * cp) == 0)) & ((tp == 1) | (seq_len // cp % tp == 0))
    return held


def _batch_divides(pp: Ints, tp: Ints, cp: Ints, gbs: Ints, mbs: Ints, gpus: int) -> Bools:
    return np.equal(gbs % (mbs * _data_parallel(gpus, pp, tp, cp)), 0)


def _interleaving_has_micro_batches(
    pp: Ints, tp: Ints, cp: Ints, gbs: Ints, mbs: Ints, vpp: Ints, gpus: int
) -> Bools:  # fmt: skip
    count = gbs // (mbs * _data_parallel(gpus, pp, tp, cp))
    held: Bools = (vpp == 1) | ((pp > 1) & (count >= pp) & (count % pp == 0))
    return held


def _optimizer_replicas_divide(pp: Ints, tp: Ints, cp: Ints, optimizer_instances: Ints, gpus: int) -> Bools:
    held: Bools = np.equal(_data_parallel(gpus, pp, tp, cp) * cp % optimizer_instances, 0)
    return held


def _dualpipe_is_full(
    schedule: Ints, pp: Ints, tp: Ints, cp: Ints, gbs: Ints, mbs: Ints, gpus: int
) -> Bools:  # fmt: skip
    count = gbs // (mbs * _data_parallel(gpus, pp, tp, cp))
    both, folded = schedule == Schedule.DUALPIPE, schedule == Schedule.DUALPIPE_V
    held: Bools = (~(both | folded) | (count >= 2 * pp)) & (~both | ((pp | count) % 2 == 0))
    return held


def _recomputation_is_whole_or_selective(recompute: Ints, recompute_layers: Ints) -> Bools:
    full = has(recompute, Recompute.FULL)
    held: Bools = np.where(full, recompute == Recompute.FULL, recompute_layers == 0)
    return held


def _graphs_are_not_recomputed(recompute: Ints, cuda_graph: Ints) -> Bools:
    held: Bools = ~has(recompute, Recompute.FULL) | ((cuda_graph & ~np.int64(Graph.FULL_ITERATION)) == 0)
    return held


def _fused_dispatch_has_ranks(dispatcher: Ints, tp: Ints, ep: Ints) -> Bools:
    return (dispatcher < Dispatcher.DEEPEP) | (tp * ep > 1)


def _expert_overlap_has_a_partner(ep_overlap: Bools, ep: Ints, pp: Ints, vpp: Ints, dispatcher: Ints) -> Bools:
    held: Bools = ~ep_overlap | ((ep > 1) & ((pp == 1) | (vpp > 1)) & (dispatcher != Dispatcher.ALLGATHER))
    return held


def _expert_overlap_recomputes_little(ep_overlap: Bools, recompute: Ints) -> Bools:
    return ~ep_overlap | ~has(recompute, Recompute.FULL | Recompute.MOE)


def _weight_gradients_wait_under_overlap(delay_wgrad: Bools, ep_overlap: Bools) -> Bools:
    return ~delay_wgrad | ep_overlap


def _one_expert_overlap(shared_expert_overlap: Bools, ep_overlap: Bools, dispatcher: Ints) -> Bools:
    held: Bools = ~shared_expert_overlap | (~ep_overlap & (dispatcher != Dispatcher.ALLGATHER))
    return held


def _experts_need_sequence_parallelism(tp: Ints, sequence_parallel: Bools, model: ModelShape) -> Bools:
    held: Bools = sequence_parallel | (tp == 1) | (not model.experts)
    return held


def _tensor_overlap_has_ranks(tp: Ints, sequence_parallel: Bools, tp_comm_overlap: Bools) -> Bools:
    return ~tp_comm_overlap | (sequence_parallel & (tp > 1))


_RULES: tuple[Rule, ...] = (
    _meshes_fill_the_cluster,
    _expert_meshes_fill_the_cluster,
    _stages_have_layers,
    _tensor_parallel_divides,
    _experts_divide,
    _sequence_divides,
    _batch_divides,
    _interleaving_has_micro_batches,
    _optimizer_replicas_divide,
    _dualpipe_is_full,
    _recomputation_is_whole_or_selective,
    _graphs_are_not_recomputed,
    _fused_dispatch_has_ranks,
    _expert_overlap_has_a_partner,
    _expert_overlap_recomputes_little,
    _weight_gradients_wait_under_overlap,
    _one_expert_overlap,
    _experts_need_sequence_parallelism,
    _tensor_overlap_has_ranks,
)
_NEEDS: dict[Rule, frozenset[str]] = {rule: frozenset(inspect.signature(rule).parameters) for rule in _RULES}
