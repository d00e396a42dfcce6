from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.activations import MLP, MOE, part_activations
from simulator.hardware import GIB, parse_cluster
from simulator.job import Dispatcher, Graph, Jobs, Offload, Precision, Recompute, make_jobs
from simulator.memory import MEMORY_PARTS, MemoryEstimate, peak_memory
from simulator.memory_physics import (
    DEFAULT_MEMORY_PHYSICS,
    MEMORY_SPREAD,
    MemoryPhysics,
    drawn_memory_physics,
    memory_physics_of,
)
from simulator.models import ModelShape, model, models, parameters
from simulator.pipeline import in_flight

# Routing as the published formulas count it: even, and the expert outputs kept.
TEXTBOOK = replace(DEFAULT_MEMORY_PHYSICS, routing_imbalance=1.0, expert_output_kept=1.0)
SHAPES = dict(models())


def jobs(name: str | ModelShape, cluster: str = "64xH100-SXM5-80GB", **columns: Any) -> Jobs:
    shape = model(name) if isinstance(name, str) else name
    return make_jobs(shape, parse_cluster(cluster), **{"gbs": 64, "seq_len": 4096} | columns)


def kept(one: Jobs, mlp: str, physics: MemoryPhysics = TEXTBOOK) -> Any:
    """Bytes per token that a layer with this MLP keeps, shape (B,)."""
    layer = part_activations(one, physics)
    return layer.kept["attention"] + layer.kept[mlp]


def static(estimate: MemoryEstimate) -> float:
    return float(sum(estimate.parts[part][0] for part in ("weights", "gradients", "optimizer")))


def test_static_bytes_of_gpt3_175b_on_64() -> None:
    """arXiv 2205.05198: tp 8, pp 8 on 64 A100 leave no data parallelism, 18 bytes a parameter; Megatron-LM
    d98e8a6 theoretical_memory_usage.py, which leaves out the position table, prints 46.9 GiB for the first stage."""
    one = jobs(replace(model("gpt3-175b"), learned_positions=0), "64xA100-80GB", tp=8, pp=8, seq_len=2048)
    assert static(peak_memory(one)) / GIB == pytest.approx(46.9, rel=2e-3)


def test_activations_of_a_dense_stage() -> None:
    """SimuMax@4dcaae5 for 20 layers of Llama-3-70B, tp 4, cp 2, sequence 8192: 5.237 GiB a micro-batch."""
    one = jobs("llama-3-70b", tp=4, cp=2, seq_len=8192)
    assert 20 * kept(one, MLP)[0] * 8192 / 2 / GIB == pytest.approx(5.237, rel=2e-3)


def test_activations_of_a_moe_stage() -> None:
    """SimuMax@4dcaae5 for 7 layers of Mixtral-8x22B, tp 2, sequence 4096: 4.322 GiB a micro-batch."""
    one = jobs("mixtral-8x22b", tp=2, ep=8)
    assert 7 * kept(one, MOE)[0] * 4096 / GIB == pytest.approx(4.322, rel=2e-3)


def test_activations_of_a_latent_attention_layer() -> None:
    """One MoE layer of DeepSeek-V3 without tensor parallelism: SimuMax@4dcaae5 keeps 586 kB a token."""
    assert kept(jobs("deepseek-v3", ep=8), MOE)[0] == pytest.approx(586e3, rel=0.03)


LLAMA_12 = replace(model("llama-3-70b"), layers=12)
# tp, pp, cp, seq_len, GiB allocated and reserved on the fullest rank of 8 B200 with BF16, a distributed optimizer
# and fused cross-entropy. SimuMax@4dcaae5 docs/b200/b200_release_v1.2_summary.md (measured with Megatron-LM).
MEASURED_B200 = [
    (1, 2, 1, 4096, 66.55, 70.88),
    (2, 1, 1, 4096, 60.68, 62.53),
    (4, 1, 1, 4096, 39.07, 40.18),
    (8, 1, 1, 4096, 28.29, 29.12),
    (2, 1, 4, 32768, 68.43, 70.33),
    (1, 1, 8, 32768, 104.51, 111.94),
    (2, 1, 4, 131072, 112.67, 121.4),
    (1, 1, 8, 131072, 147.99, 159.65),
]


@pytest.mark.parametrize(("tp", "pp", "cp", "seq_len", "allocated", "reserved"), MEASURED_B200)
def test_measured_peak_of_dense_layers(
    tp: int, pp: int, cp: int, seq_len: int, allocated: float, reserved: float
) -> None:
    one = jobs(LLAMA_12, "8xB200", tp=tp, pp=pp, cp=cp, seq_len=seq_len, cross_entropy_fusion=True)
    peak = peak_memory(one)
    assert peak.peak_allocated_bytes.max() / GIB == pytest.approx(allocated, rel=0.02)
    assert (peak.peak_reserved_bytes.max() - peak.outside_bytes[0]) / GIB == pytest.approx(reserved, rel=0.03)


def test_measured_peak_of_moe_layers() -> None:
    """Same source: one dense and three MoE layers of DeepSeek-V2, pp 2, ep 4, padded to capacity 1: 31.58, 44.70."""
    shape = ModelShape(
        name="custom", layers=4, hidden=5120, ffn=12288, heads=128, kv_heads=128, head_dim=128, vocab=102400,
        attention="mla", q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128, qk_norm="lora",
        experts=160, top_k=6, moe_ffn=1536, shared_ffn=3072, first_dense_layers=1,
    )  # fmt: skip
    one = jobs(shape, "8xB200", pp=2, ep=4, capacity_factor=1.0, cross_entropy_fusion=True)
    peak = peak_memory(one).peak_allocated_bytes[0] / GIB
    assert peak.max() == pytest.approx(44.70, rel=0.02)
    assert peak.min() == pytest.approx(31.58, rel=0.04)


def test_measured_peak_with_and_without_recompute() -> None:
    """NVIDIA/Megatron-LM PR 6429: DeepSeek-V3 cut to 14 layers (of which we take 3 to be dense) and one MTP layer,
    64 H100, pp 4, vpp 2, ep 16, sequence 2048: 67.09 GiB without and 58.74 with full recomputation, 68.63 and 59.10
    when expert communication is overlapped."""
    cut = replace(model("deepseek-v3"), layers=14)
    batch = jobs(
        cut, pp=4, vpp=2, ep=16, seq_len=2048, gbs=256, stage_layers=[[4, 4, 4, 2]], force_balance=True,
        recompute=[0, Recompute.FULL, 0, Recompute.FULL], ep_overlap=[False, False, True, True],
    )  # fmt: skip
    peaks = peak_memory(batch).peak_allocated_bytes.max(axis=1) / GIB
    assert peaks == pytest.approx([67.09, 58.74, 68.63, 59.10], rel=0.03)


def test_deepseek_v3_breakdown() -> None:
    """arXiv 2603.07685 Tables 3 and 4, BF16, pp 4, vpp 4, ep 64 on 256 GPUs: 131.0 GB of activations, of which
    norm outputs are 8.2 and expert outputs, no longer kept, would be 26.3; FP8 saves about 16."""

    def activations(expert_output_kept: float = 0.0, **columns: Any) -> float:
        layout = {"pp": 4, "vpp": 4, "ep": 64, "gbs": 8192, "force_balance": True}
        one = jobs("deepseek-v3", "256xH100", stage_layers=[[16, 16, 16, 13]], **layout, **columns)
        physics = replace(DEFAULT_MEMORY_PHYSICS, expert_output_kept=expert_output_kept)
        return float(peak_memory(one, physics).parts["activations"][0]) / 1e9

    plain = activations()
    assert plain == pytest.approx(131.0, rel=0.05)
    assert plain - activations(recompute=Recompute.LAYERNORM) == pytest.approx(8.2, rel=0.15)
    assert activations(expert_output_kept=1.0) - plain == pytest.approx(26.3, rel=0.15)
    assert plain - activations(precision=Precision.FP8_BLOCKWISE) == pytest.approx(16, rel=0.25)


def test_in_flight_against_a_played_schedule() -> None:
    """1F1B as an event list: stage r runs p - r - 1 forwards, then alternates."""
    for pp in (1, 2, 4, 8):
        for micro in (1, 3, 16):
            counts = in_flight(jobs("llama-3-70b", "64xH100", pp=pp, gbs=micro * 64 // pp))[0]
            for stage in range(pp):
                order = "F" * min(pp - stage - 1, micro) + "FB" * max(micro - (pp - stage - 1), 0)
                held = np.cumsum([1 if step == "F" else -1 for step in order]).max()
                assert counts[stage] == held


def test_interleaving_costs_the_first_stage_its_penalty() -> None:
    """arXiv 2205.05198: p (1 + (p - 1) / (p v)) micro-batches on the first stage."""
    for pp, vpp in ((4, 5), (8, 2), (2, 3)):
        first = in_flight(jobs("llama-3-70b", pp=pp, vpp=vpp, gbs=1024))[0, 0]
        assert first == pytest.approx(pp * (1 + (pp - 1) / (pp * vpp)))


def layouts() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tp": st.sampled_from([1, 2, 4]),
            "pp": st.sampled_from([1, 2, 4]),
            "vpp": st.sampled_from([1, 2]),
            "cp": st.sampled_from([1, 2]),
            "ep": st.sampled_from([1, 4]),
            "mbs": st.sampled_from([1, 2]),
            "zero_stage": st.integers(0, 3),
            "precision": st.sampled_from(list(Precision)),
            "recompute": st.integers(0, 255),
            "recompute_layers": st.integers(0, 3),
            "offload": st.integers(0, 31),
            "cuda_graph": st.sampled_from(list(Graph)),
            "dispatcher": st.sampled_from(list(Dispatcher)),
            "optimizer_offload": st.sampled_from([0.0, 0.5, 1.0]),
            "ep_overlap": st.booleans(),
            "sequence_parallel": st.booleans(),
            "fp8_param_gather": st.booleans(),
            "fused_attention": st.booleans(),
            "expandable_segments": st.booleans(),
        }
    )


SOME = st.sampled_from(["llama-3-8b", "megatron-gpt-22b", "qwen3-30b-a3b", "glm-4.5", "deepseek-v3", "gpt-oss-120b"])
LAWS = settings(max_examples=60, deadline=None)


@LAWS
@given(SOME, layouts())
def test_parts_sum_and_stages_end_with_the_pipeline(name: str, layout: dict[str, Any]) -> None:
    batch = jobs(name, **layout | {"pp": [layout["pp"], 4], "gbs": 512})
    estimate = peak_memory(batch)
    assert tuple(estimate.parts) == MEMORY_PARTS
    assert all(np.all(part >= 0) for part in estimate.parts.values())
    fullest = estimate.peak_reserved_bytes.argmax(axis=1)
    total = sum(estimate.parts.values())
    assert total == pytest.approx(estimate.peak_allocated_bytes[np.arange(2), fullest])
    exists = np.arange(4) < batch.pp[:, None]
    assert np.all((estimate.peak_allocated_bytes > 0) == exists)
    assert np.all(estimate.peak_reserved_bytes[exists] > estimate.peak_allocated_bytes[exists])


@LAWS
@given(SOME, layouts())
def test_a_batch_is_its_jobs(name: str, layout: dict[str, Any]) -> None:
    both = jobs(name, **layout | {"pp": [layout["pp"], 2], "mbs": [1, 2], "gbs": 512})
    together = peak_memory(both)
    for row in range(2):
        alone = peak_memory(both.take(slice(row, row + 1)))
        assert np.array_equal(alone.peak_reserved_bytes[0], together.peak_reserved_bytes[row])


@LAWS
@given(SOME, layouts(), st.sampled_from(["mbs", "zero_stage", "optimizer_offload", "expandable_segments"]))
def test_monotone(name: str, layout: dict[str, Any], lever: str) -> None:
    """More sequences at once never take less; sharding, offloading and expandable segments never take more."""
    if lever == "zero_stage":
        values = np.array([2, 1, 0])  # stage 3 gathers whole layers at times, which may cost a small job more
    else:
        values = {"mbs": np.array([1, 2, 4]), "optimizer_offload": np.array([1.0, 0.5, 0.0])}.get(
            lever, np.array([True, False])
        )
    peaks = peak_memory(jobs(name, **layout | {lever: values, "gbs": 1024})).peak_reserved_bytes
    assert np.all(np.diff(peaks, axis=0) >= -1e-6)


@LAWS
@given(
    SOME,
    layouts(),
    st.sampled_from([bit for bit in Recompute if bit != Recompute.FULL]),
    st.sampled_from(list(Offload)),
)
def test_recompute_and_offload_never_keep_more(
    name: str, layout: dict[str, Any], module: Recompute, moved: Offload
) -> None:
    before = jobs(name, **layout)
    recomputed = replace(before, recompute=before.recompute | module)
    offloaded = replace(before, offload=before.offload | moved)
    base = part_activations(before, DEFAULT_MEMORY_PHYSICS)
    for after in (recomputed, offloaded):
        layer = part_activations(after, DEFAULT_MEMORY_PHYSICS)
        for part in layer.kept:
            assert layer.kept[part][0] <= base.kept[part][0] <= base.full[part][0]


@LAWS
@given(SOME, layouts())
def test_full_recompute_keeps_only_inputs(name: str, layout: dict[str, Any]) -> None:
    plain = layout | {"recompute": 0, "recompute_layers": 0, "offload": 0, "cuda_graph": 0}
    none, full = (peak_memory(jobs(name, **plain | {"recompute": mode})) for mode in (Recompute.NONE, Recompute.FULL))
    assert full.parts["activations"][0] <= none.parts["activations"][0]


def test_recomputing_fused_attention_saves_next_to_nothing() -> None:
    """Megatron-Bridge measured no saving for it; materialised scores are what it was made for."""
    fused, scores = (
        kept(jobs("qwen3-30b-a3b", ep=8, recompute=[0, 1], fused_attention=how), MOE) for how in (True, False)
    )
    assert fused[1] > 0.99 * fused[0]
    assert scores[1] < 0.2 * scores[0]


def test_torchtitan_keeps_the_wide_inputs_of_fp8_products() -> None:
    """pytorch/torchtitan@b5bcd76 docs/performance.md: 77.0 GiB in BF16 and 76.8 with float8."""
    formats = [Precision.BF16, Precision.FP8_TENSORWISE, Precision.MXFP8, Precision.NVFP4]
    one = jobs("llama-3-8b", precision=formats)
    wide, narrow = kept(one, MLP, memory_physics_of("torchtitan")), kept(one, MLP)
    assert np.array_equal(wide[:3], np.full(3, wide[0]))
    assert wide[3] < wide[0]
    assert np.all(np.diff(narrow[[0, 2, 1, 3]]) < 0)


def test_graph_pools_return_nothing_to_an_allocator_in_need() -> None:
    """Near the limit the same layout fits without captured graphs and does not fit with them."""
    one = jobs("llama-3-8b", "8xH100-SXM5-80GB", cuda_graph=[Graph.NONE, Graph.ATTN])
    peak = peak_memory(one)
    outside, share = peak.outside_bytes[0], DEFAULT_MEMORY_PHYSICS.reserve
    memory = (peak.peak_allocated_bytes[0, 0] * (1 + share / 2) + outside) * np.ones(2)
    chip = replace(one.cluster.accelerator, memory_bytes=float(memory[0]))
    tight = peak_memory(replace(one, cluster=replace(one.cluster, accelerator=chip))).peak_reserved_bytes[:, 0]
    assert list(tight > memory) == [False, True]


def test_more_ranks_never_hold_more() -> None:
    for lever, values in (("tp", [1, 2, 4, 8]), ("cp", [1, 2, 4])):
        peaks = peak_memory(jobs("llama-3-70b", seq_len=8192, **{lever: values})).peak_allocated_bytes
        assert np.all(np.diff(peaks[:, 0]) < 0)
    experts = peak_memory(jobs("qwen3-30b-a3b", ep=[1, 2, 4, 8], force_balance=True)).peak_allocated_bytes
    assert np.all(np.diff(experts[:, 0]) < 0)


def test_ends_of_the_pipeline() -> None:
    """The last stage of GLM-4.5 carries the MTP layer and a second embedding for it; the others do not change."""
    one = jobs("glm-4.5", "64xH200", pp=4, ep=16, force_balance=True, stage_layers=[[23, 23, 23, 23]])
    with_mtp = peak_memory(one).peak_allocated_bytes[0]
    without = peak_memory(replace(one, model=replace(one.model, mtp_layers=0))).peak_allocated_bytes[0]
    assert np.array_equal(with_mtp[:3], without[:3])
    added = 6 * parameters(model("glm-4.5")).embedding
    assert with_mtp[3] - without[3] > added


def test_a_hybrid_of_attention_and_mlp_is_a_transformer() -> None:
    """A pattern of alternating mixers is the plain model whose layers it cuts in two."""
    plain = replace(model("llama-3-8b"), layers=16)
    cut = replace(plain, layers=32, hybrid="*-" * 16)
    whole, halves = (peak_memory(jobs(shape, pp=2, tp=2)) for shape in (plain, cut))
    for part in ("weights", "gradients", "optimizer", "activations"):
        assert halves.parts[part] == pytest.approx(whole.parts[part])


def test_mamba_layers_keep_what_their_scan_saves() -> None:
    """Of Nemotron-3 Nano: norm in and out, the projection 2 (2 x 4096 + 2 x 8 x 128 + 64), the scan in and out."""
    shape = model("nemotron-3-nano-30b-a3b")
    inner = shape.mamba_heads * shape.mamba_head_dim
    projected = 2 * inner + 2 * shape.mamba_groups * shape.mamba_state + shape.mamba_heads
    layer = part_activations(jobs(shape), TEXTBOOK)
    assert layer.kept["mamba"][0] == 4 * shape.hidden + 2 * projected + 4 * inner


@pytest.mark.parametrize("name", SHAPES)
def test_every_model_has_an_estimate(name: str) -> None:
    estimate = peak_memory(jobs(name, tp=8, pp=2))
    assert np.all(np.isfinite(estimate.peak_reserved_bytes))
    assert np.all(estimate.outside_bytes < 10 * GIB)


def test_saved_tensors_of_a_dense_layer_against_torch() -> None:
    """What autograd saves in a hand-written layer whose norms and activation save their input only."""
    torch = pytest.importorskip("torch")
    shape = ModelShape(name="custom", layers=1, hidden=64, ffn=160, heads=4, kv_heads=2, head_dim=16, vocab=96)
    seq, saved = 128, {}

    def keep(tensor: Any) -> Any:
        if tensor.shape[0] == seq or tensor.dim() == 4:  # activations, not weights
            saved[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no storage is reused
        return tensor

    def weight(*size: int) -> Any:
        return torch.ones(*size, dtype=torch.bfloat16, requires_grad=True)

    class SwiGlu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, both: Any) -> Any:
            ctx.save_for_backward(both)
            gate, up = both.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise NotImplementedError

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise NotImplementedError

    def heads(x: Any, count: int) -> Any:
        return x.view(seq, count, 16).transpose(0, 1)[None]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x = weight(seq, 64)
        qkv = Norm.apply(x) @ weight(64, 128)
        q, k, v = (part.clone() for part in qkv.split([64, 32, 32], dim=-1))
        q, k, v = heads(q, 4), heads(k, 2), heads(v, 2)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + out.transpose(1, 2).reshape(seq, 64) @ weight(64, 64)
        x = x + SwiGlu.apply(Norm.apply(x) @ weight(64, 320)) @ weight(160, 64)
    measured = sum(t.untyped_storage().nbytes() for t in saved.values()) / seq
    assert measured == pytest.approx(kept(jobs(shape, "1xH100", seq_len=seq), MLP)[0], rel=0.05)


def test_the_peaks_of_another_stack() -> None:
    """Peaks of huggingface/nanotron, Ultra-Scale Playbook benchmarks_interactive.html (vinjn/nanotron-ultrascale-
    playbook@924e4d0b): 1.3 B parameters, multi-head, sequence 4096, batch 256, H100, no recomputation, ZeRO-0 and 1."""
    shape = ModelShape(
        name="custom", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=32, head_dim=64, vocab=131072,
        tied_embeddings=True,
    )  # fmt: skip
    measured = {(8, 1, 1, 0): 36.7, (128, 1, 2, 1): 30.8, (64, 8, 4, 1): 43.9, (16, 8, 1, 1): 17.4}
    stages = {1: [16], 8: [3, 3, 2, 3, 2, 3, 0, 0]}
    for (gpus, pp, mbs, zero), peak in measured.items():
        layout = {"pp": pp, "mbs": mbs, "gbs": 256, "zero_stage": zero, "stage_layers": stages[pp]}
        estimate = peak_memory(jobs(shape, f"{gpus}xH100", **layout), memory_physics_of("nanotron"))
        reserved = (estimate.peak_reserved_bytes[0, 0] - estimate.outside_bytes[0]) / GIB
        assert reserved == pytest.approx(peak, rel=0.08), (gpus, pp, mbs, zero)


def test_drawn_constants_scatter_around_their_values() -> None:
    """Half of the draws lie on either side, the scatter is the stated one, and nothing moves without scale."""
    random = np.random.default_rng(1)
    drawn = [drawn_memory_physics(random, 1.0) for _ in range(400)]
    for name, sd in MEMORY_SPREAD.items():
        logs = np.log([getattr(physics, name) / getattr(DEFAULT_MEMORY_PHYSICS, name) for physics in drawn])
        assert abs(np.median(logs)) < 0.25 * sd
        assert np.std(logs) == pytest.approx(sd, rel=0.3)
    still = drawn_memory_physics(random, 0.0)
    assert all(getattr(still, name) == pytest.approx(getattr(DEFAULT_MEMORY_PHYSICS, name)) for name in MEMORY_SPREAD)


def test_offloaded_layers_leave_in_proportion() -> None:
    """Half of 32 layers on the host: half of the activations, the last norm's apart."""
    layers = {"offload": Offload.LAYER, "offload_layers": [32, 16, 8], "gbs": 64}
    kept_here = peak_memory(jobs("llama-3-8b", **layers)).parts["activations"]
    everything = peak_memory(jobs("llama-3-8b")).parts["activations"][0]
    ends = kept_here[0]
    assert (kept_here - ends) / (everything - ends) == pytest.approx([0, 0.5, 0.75])


def test_memory_ends_softly() -> None:
    """Up to the capacity the allocator keeps its unused segments; beyond, a quarter of them stays in its way."""
    physics = replace(DEFAULT_MEMORY_PHYSICS, reserve=0.2, reserve_dropless=0.0)
    batch = jobs("llama-3-8b", tp=2, mbs=[1, 2, 4, 8], gbs=768)
    estimate = peak_memory(batch, physics)
    allocated, needed = estimate.peak_allocated_bytes[:, 0], estimate.peak_reserved_bytes[:, 0] - estimate.outside_bytes
    capacity = batch.cluster.accelerator.memory_bytes - estimate.outside_bytes
    for held, used, room in zip(allocated, needed, capacity, strict=True):
        expected = min(1.2 * held, max(room, 1.05 * held))
        assert used == pytest.approx(expected)
    assert np.any(needed < capacity)
    assert np.any(needed > capacity)
