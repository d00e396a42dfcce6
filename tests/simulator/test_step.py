from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collectives import gather_seconds, tensor_group
from simulator.hardware import parse_cluster
from simulator.job import Dispatcher, Graph, Offload, Precision, Recompute, make_jobs
from simulator.models import model
from simulator.posterior import DEFAULT_PHYSICS, POSTERIOR
from simulator.step import BREAKDOWN, simulate_step

DIAGNOSTICS = {
    "gemm_eff", "bubble_frac", "stage_imbalance", "host_gap_frac", "tokens_per_expert", "model_state_frac", "frag_frac",
    "mem_peak_frac",
}  # fmt: skip


def seconds(name, cluster, **columns):
    return simulate_step(make_jobs(model(name), parse_cluster(cluster), **columns)).step_time_s


def qwen(cluster="16xH100-SXM5-80GB", **columns):
    return seconds(
        "qwen3-30b-a3b", cluster, **({"gbs": 512, "seq_len": 4096, "ep": 16, "force_balance": True} | columns)
    )


def llama(cluster="64xH100-SXM5-80GB", **columns):
    return seconds("llama-3-70b", cluster, **({"gbs": 128, "seq_len": 8192, "tp": 4, "pp": 4, "vpp": 5} | columns))


layouts = st.fixed_dictionaries({
    "tp": st.sampled_from([1, 2, 4]), "pp": st.sampled_from([1, 2, 4]), "cp": st.sampled_from([1, 2]),
    "vpp": st.sampled_from([1, 2]), "ep": st.sampled_from([1, 2, 8]), "mbs": st.sampled_from([1, 2]),
    "recompute": st.sampled_from([0, 1, 2, 32, 128]), "dispatcher": st.integers(0, 3), "precision": st.integers(0, 3),
    "zero_stage": st.integers(0, 3), "ep_overlap": st.booleans(), "sequence_parallel": st.booleans(),
    "cuda_graph": st.sampled_from([0, 1, 12, 32]), "optimizer_offload": st.sampled_from([0.0, 0.5]),
    "tp_comm_overlap": st.booleans(), "overlap_grad_reduce": st.booleans(), "offload": st.sampled_from([0, 4, 16]),
})  # fmt: skip


@given(st.lists(layouts, min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_parts_sum_to_the_step_and_a_batch_equals_its_jobs(columns):
    batch = {name: [layout[name] for layout in columns] for name in columns[0]}
    jobs = make_jobs(model("qwen3-30b-a3b"), parse_cluster("64xH100-SXM5-80GB"), gbs=512, seq_len=4096, **batch)
    step = simulate_step(jobs)
    assert tuple(step.breakdown_s) == BREAKDOWN
    assert np.sum(list(step.breakdown_s.values()), axis=0) == pytest.approx(step.step_time_s, rel=1e-12)
    assert all(np.all(part >= -1e-12) and np.all(np.isfinite(part)) for part in step.breakdown_s.values())
    assert np.all((step.mfu > 0) & (step.mfu < 1))
    assert set(step.diagnostics) == DIAGNOSTICS
    assert all(np.all(np.isfinite(value)) for value in step.diagnostics.values())
    for i in range(jobs.size):
        alone = simulate_step(jobs.take(np.array([i])))
        assert alone.step_time_s[0] == pytest.approx(step.step_time_s[i], rel=1e-12)


@pytest.mark.parametrize(
    ("columns", "published", "tolerance"),
    [
        ({"recompute": int(Recompute.CORE_ATTN)}, 13.75, 0.05),
        ({"recompute": int(Recompute.FULL), "sequence_parallel": False}, 18.13, 0.05),
    ],
)
def test_gpt3_on_a100(columns, published, tolerance):
    """arXiv 2205.05198 Table 5: GPT-3 175B on 64 A100, tp 8, pp 8, vpp 3."""
    columns |= {"tp": 8, "pp": 8, "vpp": 3, "gbs": 64, "seq_len": 2048, "fused_attention": False}
    assert seconds("gpt3-175b", "64xA100-SXM4-80GB", **columns)[0] == pytest.approx(published, rel=tolerance)


def test_qwen3_235b_on_h100():
    """Megatron-Bridge performance summary: 256 H100, 20.8 s; overlaps and router fusion as in its recipe
    (scripts/performance, qwen3_235b_a22b_h100)."""
    step = seconds(
        "qwen3-235b-a22b", "256xH100-SXM5-80GB", tp=2, pp=8, vpp=4, ep=32, gbs=2048, seq_len=4096, force_balance=True,
        ep_overlap=True, grad_reduce_fp32=False, tp_comm_overlap=True, router_fusion=True,
    )  # fmt: skip
    assert step[0] == pytest.approx(20.8, rel=0.10)


DEEP = {"pp": 8, "vpp": 1, "gbs": 64}
PLAIN_TP = {"sequence_parallel": False, "tp": 8}
HYBRID = {"dispatcher": Dispatcher.HYBRIDEP}
SLOWER = {
    "full recompute": (llama, {}, {"recompute": int(Recompute.FULL)}),
    "recomputed MLP": (llama, {}, {"recompute": int(Recompute.MLP)}),
    "tp 4 to 8": (llama, {}, {"tp": 8}),
    "no interleaving": (llama, {}, {"vpp": 1}),
    "no fused attention": (llama, {}, {"fused_attention": False}),
    "uneven stages": (llama, {}, {"stage_layers": [25, 20, 20, 15]}),
    "gradients late": (llama, {}, {"overlap_grad_reduce": False}),
    "parameters late": (llama, {}, {"overlap_param_gather": False}),
    "FP32 gradient reduction": (llama, {"grad_reduce_fp32": False, "overlap_grad_reduce": False},
                                {"grad_reduce_fp32": True, "overlap_grad_reduce": False}),
    "fewer, larger micro-batches in a deep pipeline": (llama, DEEP, DEEP | {"mbs": 4}),
    "optimizer on the host": (llama, {}, {"optimizer_offload": 1.0}),
    "ring without NVLS": (llama, PLAIN_TP, PLAIN_TP | {"nvls": False}),
    "no connection order": (llama, {}, {"max_connections": 32}),
    "blocking sends": (llama, {}, {"overlap_p2p": False}),
    "whole MoE recomputed": (qwen, {}, {"recompute": int(Recompute.MOE)}),
    "learned balance": (qwen, {}, {"force_balance": False}),
    "one GEMM per expert": (qwen, {}, {"grouped_gemm": False}),
    "unfused permutation": (qwen, {}, {"permute_fusion": False}),
    "experts across nodes": (qwen, {"ep": 8}, {"ep": 16}),
    "expert tensor parallelism": (qwen, {"ep": 8}, {"ep": 8, "etp": 2, "tp": 2}),
    "offload of layer inputs": (qwen, {}, {"offload": int(Offload.LAYER)}),
}  # fmt: skip
OVERLAP = {"ep": 8, "ep_overlap": True}  # in one node, where computation outlasts the dispatch
FASTER = {
    "dispatch overlap": (qwen, {}, {"ep_overlap": True}),
    "dispatch overlap, HybridEP": (qwen, HYBRID, HYBRID | {"ep_overlap": True}),
    "delayed weight gradients": (qwen, OVERLAP, OVERLAP | {"delay_wgrad": True}),
    "DeepEP": (qwen, {}, {"dispatcher": Dispatcher.DEEPEP}),
    "HybridEP": (qwen, {"dispatcher": Dispatcher.DEEPEP}, {"dispatcher": Dispatcher.HYBRIDEP}),
    "more connections under overlap": (qwen, OVERLAP, OVERLAP | {"max_connections": 32}),
    "larger micro-batches of small experts": (qwen, {"ep": 8}, {"ep": 8, "mbs": 2}),
    "fused router": (qwen, {}, {"router_fusion": True}),
    "FP8": (llama, {}, {"precision": Precision.FP8_TENSORWISE}),
    "TP overlap": (llama, {}, {"tp_comm_overlap": True}),
    "fused cross-entropy": (llama, {}, {"cross_entropy_fusion": True}),
    "compiled": (llama, {}, {"compiled": True}),
    "tuned host": (llama, {}, {"host_tuned": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOWER)
def test_slower(name):
    price, before, after = SLOWER[name]
    assert price(**after)[0] > price(**before)[0]


@pytest.mark.parametrize("name", FASTER)
def test_faster(name):
    price, before, after = FASTER[name]
    assert price(**after)[0] < price(**before)[0]


def test_shared_experts_hide_dispatch():
    off, on = seconds(
        "deepseek-v3", "64xH100-SXM5-80GB", gbs=512, seq_len=4096, ep=64, shared_expert_overlap=[False, True]
    )
    assert on < off


@pytest.mark.parametrize(("traced", "low", "high"), [(False, 0.0, 0.01), (True, 0.01, 0.1)])
def test_a_host_that_runs_ahead_hides_its_issue(traced, low, high):
    """Kernels four times as long as their issue hide it, but in the trace of a layer, which starts with no queue."""
    jobs = make_jobs(model("llama-3-8b"), parse_cluster("8xH100-SXM5-80GB"), gbs=64, seq_len=8192, traced=traced)

    def step(launch_s):
        physics = replace(DEFAULT_PHYSICS, launch_s=launch_s, step_fixed_s=0.0, sync_s=0.0)
        return simulate_step(jobs, physics).step_time_s[0]

    busy, issue = step(1e-12), step(1.0)  # the second takes seconds of issue, all but none of kernels
    assert low < step(busy / issue / 4) / busy - 1 < high
    assert step(4 * busy / issue) == pytest.approx(4 * busy, rel=high)


def test_graphs_matter_where_the_host_is_the_limit():
    eager, graph, whole = seconds(
        "llama-3-8b", "8xH100-SXM5-80GB", tp=8, gbs=8, seq_len=512,
        cuda_graph=[0, int(Graph.ATTN | Graph.MLP), int(Graph.FULL_ITERATION)],
    )  # fmt: skip
    assert eager > graph >= whole


def test_zero_3_gathers_in_every_microbatch():
    plain, sharded = seconds("llama-3-8b", "64xH100-SXM5-80GB", gbs=512, seq_len=2048, zero_stage=[1, 3])
    assert sharded > plain


def test_plain_data_parallelism_moves_twice_the_gradients():
    """An all-reduce is a reduce-scatter and a gather of the same bytes; ZeRO-1 gathers half as many of BF16."""
    jobs = make_jobs(
        model("llama-3-8b"), parse_cluster("64xH100-SXM5-80GB"), gbs=512, seq_len=2048, zero_stage=[0, 1],
        overlap_grad_reduce=False, overlap_param_gather=False, bucket_bytes=10**12,
    )  # fmt: skip
    plain, sharded = simulate_step(jobs).breakdown_s["exposed_dp"]
    assert plain / sharded == pytest.approx((4 + 4) / (4 + 2), rel=0.01)


def test_a_bucket_holds_parameters_whatever_their_width():
    jobs = make_jobs(
        model("llama-3-8b"), parse_cluster("64xH100-SXM5-80GB"), gbs=512, seq_len=2048, grad_reduce_fp32=False,
        main_grad_bytes=[2.0, 4.0], bucket_bytes=[int(4e8), int(8e8)],
    )  # fmt: skip
    exposed = simulate_step(jobs).breakdown_s["exposed_dp"]
    assert exposed[0] == pytest.approx(exposed[1])


def test_margins_relieve_contention():
    off, on = qwen(ep_overlap=True, sm_margin=[False, True])
    assert on < off


def test_every_world_draw_is_a_constant_that_moves_a_step():
    jobs = make_jobs(
        model("qwen3-30b-a3b"), parse_cluster("64xH100-SXM5-80GB"), gbs=256, mbs=4, seq_len=4096, pp=2, cp=2,
        tp=[2, 2, 1, 2, 4], ep=[8, 16, 16, 8, 4], dispatcher=[1, 2, 3, 1, 2], ep_overlap=[0, 1, 1, 0, 0],
        delay_wgrad=[0, 1, 1, 0, 0],
        vpp=[1, 2, 2, 1, 1], precision=[0, 0, 1, 0, 0], optimizer_offload=[0, 0, 0, 0, 1.0],
        permute_fusion=[1, 1, 1, 0, 1], compiled=[1, 0, 0, 0, 0], fp8_attention=[0, 0, 1, 0, 0],
        overlap_grad_reduce=[1, 1, 1, 0, 1], tp_comm_overlap=[0, 1, 0, 0, 0], zero_stage=[1, 1, 1, 1, 3],
        broadcast_params=[1, 0, 0, 0, 0],
        p2p_handshake=True,
    )  # fmt: skip
    node = parse_cluster("8xH100-SXM5-80GB")
    tiny = make_jobs(
        model("llama-3-8b"), node, gbs=8, seq_len=[512, 8192, 512], tp=[8, 8, 1], standard_fusions=[False, True, True],
        sequence_parallel=[True, False, True], compiled=[False, True, False],
        cuda_graph=[0, 0, int(Graph.FULL_ITERATION)], host_tuned=1, portable_attention=[False, True, False],
        checked_collectives=[True, False, False],
    )  # fmt: skip
    overlapped = make_jobs(
        model("qwen3-30b-a3b"), parse_cluster("16xH100-SXM5-80GB"), gbs=512, seq_len=4096, ep=16, ep_overlap=True,
        delay_wgrad=True, sm_margin=True,
    )  # fmt: skip
    narrow = make_jobs(
        model("llama-3-70b"), parse_cluster("64xB200-SXM-180GB"), gbs=128, seq_len=8192, tp=4, pp=4,
        precision=[Precision.MXFP8, Precision.NVFP4],
    )  # fmt: skip
    efa = replace(jobs, cluster=replace(jobs.cluster, interconnect="efa"))
    ampere = make_jobs(model("llama-3-8b"), parse_cluster("8xA100-SXM4-80GB"), gbs=8, seq_len=8192)
    clamped = make_jobs(model("gpt-oss-120b"), parse_cluster("64xH100-SXM5-80GB"), gbs=512, seq_len=4096, ep=8)
    mamba = make_jobs(model("nemotron-3-nano-30b-a3b"), parse_cluster("64xH100-SXM5-80GB"), gbs=512, seq_len=8192, ep=8)
    stalled = replace(jobs, stalled_sends=np.ones(jobs.size, dtype=bool))
    sharing = replace(parse_cluster("16xA100-SXM4-80GB"), gpus_per_nic=2)
    detoured = make_jobs(model("llama-3-8b"), sharing, gbs=16, seq_len=2048, tp=2, overlap_grad_reduce=False)
    batches = (stalled, jobs, tiny, overlapped, narrow, ampere, clamped, mamba, efa, detoured)
    bases = [simulate_step(batch).step_time_s for batch in batches]
    for name in POSTERIOR.constants:
        factor = 1000 if name == "graph_launch_s" else 0.9  # a graph's launches bind only when they are slow
        moved = replace(DEFAULT_PHYSICS, **{name: factor * getattr(DEFAULT_PHYSICS, name)})
        times = [simulate_step(batch, moved).step_time_s for batch in batches]
        assert any(np.any(time != base) for time, base in zip(times, bases, strict=True)), name


def test_experts_with_fused_activation_move_less_memory():
    apart, fused = qwen(fused_experts=[False, True])
    assert fused < apart


def test_attention_in_fp8_is_faster():
    plain, low = qwen(fp8_attention=[False, True])
    assert low < plain


def test_offload_hides_under_the_whole_stage():
    """What the experts send to the host moves while attention computes as well: more of it there, less wait."""
    columns = {"gbs": 512, "ep": 16, "mbs": 2, "offload": int(Offload.EXPERT_FC1 | Offload.MOE_ACT)}
    cluster = parse_cluster("16xH100-SXM5-80GB")

    def wait(seq_len):
        jobs = make_jobs(model("qwen3-30b-a3b"), cluster, seq_len=seq_len, **columns)
        return simulate_step(jobs).breakdown_s["host"][0] / jobs.gbs[0] / seq_len

    assert wait(32768) < wait(4096)


def test_checked_collectives_cost_the_host_a_time_per_rank():
    """Where the host is the limit, each layer takes ten checked collectives longer, whatever the micro-batch."""
    slow_host = replace(DEFAULT_PHYSICS, launch_s=1.0, straggler=0.0)

    def extra(tp, mbs):
        columns = {"gbs": 64, "seq_len": 256, "zero_stage": 0, "checked_collectives": [False, True]}
        jobs = make_jobs(model("llama-3-8b"), parse_cluster("16xH100-SXM5-80GB"), tp=tp, mbs=mbs, **columns)
        plain, checked = simulate_step(jobs, slow_host).breakdown_s["host"]
        empty = gather_seconds(tensor_group(jobs), slow_host, np.zeros(2))[0]
        return (checked - plain) / jobs.num_microbatches[0] / (DEFAULT_PHYSICS.check_s * tp + empty)

    blocks = 2 * 32 + 1  # of 32 layers; the embedding and the head together have one
    assert extra(1, 1) == 0
    assert extra(4, 1) == pytest.approx(blocks * 5)
    assert extra(8, 1) == pytest.approx(blocks * 5)
    assert extra(8, 4) == pytest.approx(blocks * 5)


def test_communication_on_sms_slows_what_it_hides_under():
    """With nothing hidden, or one rank, nothing is slowed."""

    def slowed(tp, **constants):
        jobs = make_jobs(model("llama-3-70b"), parse_cluster("64xH100-SXM5-80GB"), gbs=128, seq_len=8192, tp=tp, pp=4)
        with_, without = (
            simulate_step(jobs, replace(DEFAULT_PHYSICS, copy_contention=c, **constants)).breakdown_s["compute"][0]
            for c in (0.4, 0.0)
        )
        return with_ - without

    assert slowed(4) > 0
    assert slowed(1) == 0
    assert slowed(4, tp_backward_hidden=0.0) == 0


def test_a_stalled_transfer_stops_a_stage_for_each_neighbour_and_pass():
    """Two stages have one neighbour each, the inner ones of four have two: per micro-batch 2 and 4 stalls."""
    for pp, stalls in ((2, 2), (4, 4)):
        jobs = make_jobs(
            model("llama-3-8b"), parse_cluster("16xH100-SXM5-80GB"), gbs=[256, 512, 256, 512], seq_len=512, pp=pp,
            stalled_sends=[False, False, True, True],
        )  # fmt: skip
        quick, quick_twice, slow, slow_twice = simulate_step(jobs).step_time_s
        more = (slow_twice - slow) - (quick_twice - quick)
        microbatches = 256 / jobs.dp[0]
        assert more / microbatches == pytest.approx(stalls * DEFAULT_PHYSICS.send_stall_s, rel=0.05)
