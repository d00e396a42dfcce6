"""Levers under the names that tables give them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration.cells import InvalidCell, Unsupported, parse_knobs
from simulator.calibration.knobs import canonical, folds_experts, levers
from simulator.calibration.measurements import load_measurements
from simulator.job import DEFAULTS, Dispatcher, Graph, Offload, Schedule


def _levers(text):
    return levers(canonical(parse_knobs(text)))


@pytest.mark.parametrize(
    ("text", "column", "value"),
    [
        ("ep_overlap=1", "ep_overlap", True),
        ("delayed_wgrad=0", "delay_wgrad", False),
        ("async_tp=1", "tp_comm_overlap", True),
        ("overlap=off(tp,p2p)", "overlap_p2p", False),
        ("vpp_comm=sync", "overlap_p2p", False),
        ("grad_allreduce_overlap=0", "overlap_grad_reduce", False),
        ("moe_dispatcher=alltoall", "dispatcher", Dispatcher.ALLTOALL),
        ("dispatcher=flex/hybridep", "dispatcher", Dispatcher.HYBRIDEP),
        ("dispatcher=alltoall(default)", "dispatcher", Dispatcher.ALLTOALL),
        ("cuda_graph=full_iteration", "cuda_graph", Graph.FULL_ITERATION),
        ("cuda_graph=local;cuda_graph_scope=mlp+moe_router", "cuda_graph", Graph.MLP | Graph.MOE_ROUTER),
        ("cuda_graph=transformer_engine", "cuda_graph", Graph.ATTN | Graph.MAMBA | Graph.MLP | Graph.MOE),
        ("cuda_graph=none", "cuda_graph", Graph.NONE),
        ("activation_offload=expert_fc1+moe_act", "offload", Offload.EXPERT_FC1 | Offload.MOE_ACT),
        ("optimizer_cpu_offload=true", "optimizer_offload", 1.0),
        ("optimizer_offload=0.5", "optimizer_offload", 0.5),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "expandable_segments", True),
        ("CUDA_DEVICE_MAX_CONNECTIONS=32", "max_connections", 32),
        ("pp_schedule=ZBVZeroBubble", "schedule", Schedule.ZB_V),
        ("interleaved_schedule=1", "schedule", Schedule.ONE_F_ONE_B),
        ("cross_entropy_fusion=te", "cross_entropy_fusion", True),
        ("task=LoRA", "frozen", True),
    ],
)
def test_one_lever_under_many_names(text, column, value):
    assert _levers(text)[column] == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dispatcher=pigeon", "pigeon"),
        ("pp_schedule=chimera", "chimera"),
        ("activation_offload=everything", "everything"),
        ("cuda_graph=local;cuda_graph_scope=soul", "soul"),
    ],
)
def test_levers_that_are_not_priced_are_named(text, words):
    with pytest.raises(Unsupported, match=words):
        _levers(text)


def test_a_knob_that_cannot_be_read_is_named():
    with pytest.raises(InvalidCell, match="ep_a2a_overlap"):
        _levers("ep_a2a_overlap=perhaps")


def test_experts_are_folded_unless_the_method_says_otherwise():
    assert folds_experts({})
    assert folds_experts({"method": "MCore+Folding"})
    assert not folds_experts({"method": "MCore"})


def test_every_knob_of_the_data_set_can_be_read():
    assert all(set(_levers(row["knobs"])) <= set(DEFAULTS) for row in load_measurements())


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4))
def test_any_knobs_are_read_or_refused(knobs):
    with contextlib.suppress(InvalidCell, Unsupported):
        assert set(levers(canonical(knobs))) <= set(DEFAULTS)
