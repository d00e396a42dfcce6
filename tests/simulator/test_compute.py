from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.compute import part_times, routing_imbalance, tokens_per_expert
from simulator.hardware import accelerators, parse_cluster
from simulator.job import Graph, Precision, Recompute, make_jobs
from simulator.kernels import (
    AttentionShape,
    attention_fit,
    attention_seconds,
    gemm_rates,
    gemm_seconds,
    memory_rate,
    memory_seconds,
    weight_gradient_seconds,
)
from simulator.models import model, parameters
from simulator.physics import Physics
from simulator.posterior import DEFAULT_PHYSICS
from simulator.stages import stage_times

H100 = parse_cluster("64xH100-SXM5-80GB")
KERNEL_BENCHMARK = Physics(gemm_speed=1.0, attention_speed=1.0)


def llama(**columns):
    return make_jobs(model("llama-3-70b"), H100, **({"gbs": 128, "seq_len": 8192, "tp": 4, "pp": 4} | columns))


def qwen(**columns):
    return make_jobs(model("qwen3-30b-a3b"), H100, **({"gbs": 512, "seq_len": 4096, "ep": 8} | columns))


@pytest.mark.parametrize(("n", "published"), [(128, 0.32), (256, 0.56), (512, 0.75), (1024, 0.81), (4096, 0.80)])
def test_gemm_efficiency_by_width(n, published):
    """H100 BF16 medians of the AIConfigurator table, the other two sizes 4096-16384."""
    rates = gemm_rates(llama(), KERNEL_BENCHMARK)
    seconds = gemm_seconds(rates, np.array(8192.0), np.array(float(n)), np.array(8192.0))
    efficiency = 2 * 8192 * n * 8192 / seconds / H100.accelerator.peak_bf16_flops
    assert efficiency == pytest.approx(published, abs=0.13)


@pytest.mark.parametrize(("seq", "published"), [(1024, 0.31), (2048, 0.44), (4096, 0.52), (8192, 0.57), (16384, 0.60)])
def test_attention_efficiency_by_length(seq, published):
    """H100 BF16, head size 128, medians of the AIConfigurator FlashAttention-3 table; here 4 sequences, 32 heads."""
    batch, heads, length = 4, np.array(32.0), np.array(float(seq))
    flops = 2 * batch * length**2 * heads * 128
    seen = AttentionShape(batch * length, np.array(1.0), heads, np.array(8.0), 128, 128)
    chip = H100.accelerator
    seconds = attention_seconds(attention_fit(chip, "gqa"), chip, seen, flops)
    assert flops / seconds / chip.peak_bf16_flops == pytest.approx(published, abs=0.04)


@pytest.mark.parametrize(
    ("name", "length", "published"),
    [
        ("H100-SXM5-80GB", 4096, 553),
        ("H100-SXM5-80GB", 16384, 638),
        ("GB200-NVL72", 4096, 1324),
        ("GB200-NVL72", 16384, 1698),
    ],
)
def test_latent_attention_of_deepseek(name, length, published):
    """arXiv 2603.07685, cuDNN forward TFLOP/s at 128 heads of 192 and 128."""
    chip, heads = accelerators()[name], np.array(128.0)
    seen = AttentionShape(np.array(float(length)), np.array(1.0), heads, heads, 192, 128)
    flops = length**2 * heads * (192 + 128.0)
    seconds = attention_seconds(attention_fit(chip, "mla"), chip, seen, flops)
    assert flops / seconds == pytest.approx(published * 1e12, rel=0.07)


@given(heads=st.integers(1, 128), length=st.integers(128, 65536), calls=st.integers(1, 8))
def test_splitting_attention_never_speeds_it_up(heads, length, calls):
    """Half the heads take at least half the time, and more calls no less than one."""
    chip = H100.accelerator
    fit = attention_fit(chip, "gqa")

    def seconds(part, calls=1):
        seen = AttentionShape(np.array(float(length)), np.array(float(calls)), heads * part, heads * part, 128, 128)
        return attention_seconds(fit, chip, seen, 2.0 * length**2 * heads * part * 128)

    assert seconds(1.0) / 2 < seconds(0.5) < seconds(1.0) <= seconds(1.0, calls)


@given(m=st.floats(1, 1e5), n=st.floats(64, 3e4), k=st.floats(64, 3e4))
def test_no_gemm_beats_the_accelerator(m, n, k):
    for precision, peak in [(Precision.BF16, H100.accelerator.peak_bf16_flops), (2, H100.accelerator.peak_fp8_flops)]:
        rates = gemm_rates(llama(precision=precision), DEFAULT_PHYSICS)
        for seconds in (gemm_seconds, weight_gradient_seconds):
            assert 2 * m * n * k / seconds(rates, np.array(m), np.array(n), np.array(k)) < peak


@given(m=st.floats(128, 1e5), groups=st.integers(1, 64))
def test_grouping_never_speeds_up(m, groups):
    rates = gemm_rates(llama(), DEFAULT_PHYSICS)
    wide = np.array(2048.0)
    one = gemm_seconds(rates, np.array(m), wide, wide)
    assert gemm_seconds(rates, np.array(m), wide, wide, groups=float(groups)) >= one


def test_unsupported_format_is_refused():
    with pytest.raises(ValueError, match="NVFP4"):
        gemm_rates(llama(precision=Precision.NVFP4), DEFAULT_PHYSICS)


@pytest.mark.parametrize("name", ["llama-3-70b", "qwen3-30b-a3b", "mixtral-8x22b", "deepseek-v3", "megatron-gpt-1.7b"])
def test_matrices_hold_the_published_parameters(name):
    """The matrices that cost time are the ones that count as parameters; norms and biases are the rest."""
    jobs = make_jobs(model(name), H100, gbs=64, seq_len=4096)
    stages = stage_times(jobs, DEFAULT_PHYSICS)
    held = (stages.weights + stages.expert_weights).sum()
    total = parameters(model(name)).total
    assert held == pytest.approx(total, rel=0.03)


def test_split_parts_hold_their_share():
    whole, split = part_times(qwen(), DEFAULT_PHYSICS), part_times(qwen(tp=2, ep=16), DEFAULT_PHYSICS)
    assert split["attention"].weights == pytest.approx(whole["attention"].weights / 2)
    assert split["moe"].expert_weights == pytest.approx(whole["moe"].expert_weights / 2)


@pytest.mark.parametrize("flag", [f for f in Recompute if f not in (Recompute.NONE,)])
def test_recomputation_repeats_at_most_the_forward(flag):
    for name in ("qwen3-30b-a3b", "deepseek-v3", "llama-3-8b"):
        parts = part_times(make_jobs(model(name), H100, gbs=64, seq_len=4096, recompute=int(flag)), DEFAULT_PHYSICS)
        for part in parts.values():
            assert 0 <= part.replay[0] <= part.forward[0] * (1 + 1e-12)


def test_full_recomputation_repeats_every_layer_or_the_named_ones():
    full = part_times(llama(recompute=int(Recompute.FULL)), DEFAULT_PHYSICS)
    assert full["mlp"].replay == pytest.approx(full["mlp"].forward)
    assert full["head"].replay == 0
    some = part_times(llama(recompute=int(Recompute.FULL), recompute_layers=5), DEFAULT_PHYSICS)
    assert some["mlp"].replay == pytest.approx(some["mlp"].forward * 5 / 20)


def test_tokens_per_expert_conserves_copies():
    jobs = qwen(ep=[1, 8, 8], tp=[1, 1, 2])
    shape = jobs.model
    copies = jobs.seq_len * shape.top_k / jobs.tp
    assert tokens_per_expert(jobs) * shape.experts / jobs.ep == pytest.approx(copies)


def test_balance_forced_or_capped():
    jobs = qwen(ep=[1, 8, 8, 64], force_balance=[False, False, True, False], capacity_factor=[0, 0, 0, 1.0])
    assert routing_imbalance(jobs, DEFAULT_PHYSICS)[[0, 2, 3]] == pytest.approx(1.0)
    assert routing_imbalance(jobs, DEFAULT_PHYSICS)[1] > 1


def test_host_levers_shorten_the_issue():
    jobs = qwen(
        cuda_graph=[0, int(Graph.MOE_ROUTER), int(Graph.FULL_ITERATION), 0, 0],
        compiled=[False, False, False, True, False],
        host_tuned=[0, 0, 0, 0, 2],
    )
    issue = part_times(jobs, DEFAULT_PHYSICS)["moe"].issue
    assert np.all(issue[1:] < issue[0])
    assert issue[2] < issue[1]


def test_fusions_shorten_the_work():
    jobs = qwen(grouped_gemm=[True, False, True, True], permute_fusion=[True, True, False, True],
                standard_fusions=[True, True, True, False])  # fmt: skip
    forward = part_times(jobs, DEFAULT_PHYSICS)["moe"].forward
    assert np.all(forward[1:] > forward[0])
    heads = part_times(qwen(cross_entropy_fusion=[True, False]), DEFAULT_PHYSICS)["head"]
    assert heads.forward[0] < heads.forward[1]


def nemotron(cluster=H100, **columns):
    shape = model("nemotron-3-nano-30b-a3b")
    return make_jobs(shape, cluster, **({"gbs": 512, "seq_len": 8192, "ep": 8} | columns))


def test_the_scan_follows_the_sms_and_the_tokens():
    """A Mamba-2 block repeats its forward scan in the backward pass; its rate is that of plain SMs, not of the
    matrix units, so that Blackwell gains as many times as it has SMs more."""

    def scan(cluster, **columns):
        slow = Physics(scan_flops_per_sm=Physics().scan_flops_per_sm / 2)
        part, slower = (part_times(nemotron(cluster, **columns), p)["mamba"] for p in (Physics(), slow))
        return slower.forward[0] - part.forward[0], slower.backward[0] - part.backward[0]

    b200 = parse_cluster("64xB200-SXM-180GB")
    forward, backward = scan(H100)
    assert backward == pytest.approx(3 * forward)
    assert scan(H100, mbs=2)[0] == pytest.approx(2 * forward)
    assert forward / scan(b200)[0] == pytest.approx(b200.accelerator.sms / H100.accelerator.sms)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "nemotron-3-nano-30b-a3b"])
def test_unfused_chains_between_expert_products_cost_memory_time(name):
    jobs = make_jobs(model(name), H100, gbs=512, seq_len=4096, ep=8, fused_experts=[False, True])
    less, more = (part_times(jobs, Physics(unfused_experts=factor))["moe"] for factor in (1.0, 2.0))
    assert more.forward[0] > less.forward[0]
    biased = bool(model(name).expert_bias)  # biases stay outside of the fused product
    assert (more.forward[1] > less.forward[1]) == biased


def test_swiglu_experts_are_fused_whatever_the_chain_costs():
    less, more = (part_times(qwen(), Physics(unfused_experts=factor))["moe"].forward for factor in (1.0, 2.0))
    assert less == more


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([Precision.BF16, Precision.FP8_TENSORWISE]))
def test_each_further_expert_of_a_rank_adds_six_fixed_costs(ep, precision):
    """Two products, forward and both gradients; casts come on top of narrow formats."""
    jobs = qwen(ep=ep, precision=int(precision))
    free = part_times(jobs, Physics(expert_gemm_s=0.0, expert_cast_s=0.0))["moe"]
    paid = part_times(jobs, Physics(expert_gemm_s=1e-5, expert_cast_s=2e-5))["moe"]
    added = (paid.forward + paid.backward - free.forward - free.backward)[0]
    each = 1e-5 if precision == Precision.BF16 else 3e-5
    assert added == pytest.approx(6 * each * (128 // ep - 1), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("precision", [Precision.FP8_TENSORWISE, Precision.MXFP8, Precision.NVFP4])
def test_every_narrow_format_has_a_speed_of_its_own(precision):
    cluster = parse_cluster("64xB200-SXM-180GB")
    jobs = make_jobs(model("llama-3-70b"), cluster, gbs=128, seq_len=8192, precision=[Precision.BF16, int(precision)])
    name = {1: "gemm_speed_low", 4: "gemm_speed_block", 5: "gemm_speed_fp4"}[int(precision)]
    plain, slow = (part_times(jobs, Physics(**{name: speed}))["mlp"].forward for speed in (1.0, 0.5))
    assert slow[0] == plain[0]
    assert slow[1] > plain[1]


def test_models_without_rotary_positions_rotate_nothing():
    shape = model("llama-3-8b")
    rotary, alibi, learned = (
        part_times(make_jobs(s, H100, gbs=64, seq_len=2048), DEFAULT_PHYSICS)["attention"].forward[0]
        for s in (shape, replace(shape, rotary=False), replace(shape, learned_positions=2048))
    )
    moved = 4 * (shape.heads + shape.kv_heads) * shape.head_dim * 2048
    assert rotary - alibi == pytest.approx(memory_seconds(llama(), DEFAULT_PHYSICS, np.array(moved), kernels=2))
    assert learned == alibi


def test_ampere_keeps_its_clocks_and_its_memory_busy():
    a100 = parse_cluster("8xA100-SXM4-80GB")
    jobs = make_jobs(model("llama-3-8b"), a100, gbs=8, seq_len=2048)
    own = Physics(ampere_clock=1.1, ampere_memory=1.2)
    bare = Physics(ampere_clock=1.0, ampere_memory=1.0)
    assert gemm_rates(jobs, bare).seconds_per_flop == pytest.approx(1.1 * gemm_rates(jobs, own).seconds_per_flop)
    assert memory_rate(a100.accelerator, own) == pytest.approx(1.2 * memory_rate(a100.accelerator, bare))
    assert memory_rate(H100.accelerator, own) == memory_rate(H100.accelerator, bare)
