"""Laws that hold for any legal job of any plain model on any accelerator."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.hardware import accelerators, parse_cluster
from simulator.job import Jobs, Precision, Recompute, make_jobs
from simulator.metrics import peak_flops
from simulator.models import models
from simulator.step import simulate_step

SHAPES = sorted(name for name, shape in models().items() if not shape.hybrid)
LAWS = settings(deadline=None, max_examples=150)
SHARES = ("gemm_eff", "bubble_frac", "host_gap_frac", "model_state_frac", "frag_frac")
LEVERS: dict[str, st.SearchStrategy[Any]] = {
    "mbs": st.sampled_from([1, 2, 8]), "seq_len": st.sampled_from([128, 4096, 131072]),
    "recompute": st.integers(0, 255), "recompute_layers": st.integers(0, 4), "zero_stage": st.integers(0, 3),
    "dispatcher": st.integers(0, 3), "cuda_graph": st.integers(0, 63), "offload": st.integers(0, 31),
    "optimizer_offload": st.sampled_from([0.0, 0.5, 1.0]), "capacity_factor": st.sampled_from([0.0, 1.0, 1.5]),
    "host_tuned": st.integers(0, 2), "max_connections": st.sampled_from([0, 1, 32]),
    "bucket_bytes": st.sampled_from([0, 10**8]), "main_grad_bytes": st.sampled_from([2.0, 4.0]),
}  # fmt: skip
SWITCHES = (
    "overlap_grad_reduce", "overlap_param_gather", "grad_reduce_fp32", "tp_comm_overlap", "ep_overlap", "delay_wgrad",
    "shared_expert_overlap", "grouped_gemm", "permute_fusion", "router_fusion", "cross_entropy_fusion", "compiled",
    "standard_fusions", "fused_attention", "fp8_param_gather", "overlap_p2p", "nvls", "force_balance", "sm_margin",
)  # fmt: skip


@st.composite
def legal_jobs(draw: st.DrawFn) -> Jobs:
    """One job whose sizes fill the cluster and divide what they must."""
    shape, part = models()[draw(st.sampled_from(SHAPES))], accelerators()[draw(st.sampled_from(sorted(accelerators())))]
    cluster = parse_cluster(f"{draw(st.sampled_from([1, 2, 8, 64, 512]))}x{part.name}")

    def size(room: int) -> int:
        return draw(st.sampled_from([n for n in (1, 2, 4, 8, 16, 64) if room % n == 0]))

    pp = min(size(cluster.n_gpus), 16)
    ranks = cluster.n_gpus // pp
    tp = min(size(ranks), 8)
    cp = size(ranks // tp)
    ep = min(size(int(np.gcd(ranks, shape.experts))), shape.experts) if shape.experts else 1
    etp = min(size(ranks // ep), tp) if shape.experts else 1
    vpp = draw(st.integers(1, max(min(shape.layers // pp, 4), 1))) if pp > 1 else 1
    levers = draw(st.fixed_dictionaries({**LEVERS, **dict.fromkeys(SWITCHES, st.booleans())}))
    formats = [value for value in Precision if peak_flops(part, value) > 0]
    return make_jobs(
        shape, cluster, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, vpp=vpp, precision=int(draw(st.sampled_from(formats))),
        gbs=levers["mbs"] * (ranks // tp // cp) * pp * draw(st.sampled_from([1, 2, 16])),
        sequence_parallel=tp > 1 and draw(st.booleans()), **levers,
    )  # fmt: skip


@LAWS
@given(legal_jobs())
def test_everything_is_finite_positive_and_sums_up(jobs: Jobs) -> None:
    with np.errstate(all="raise"):
        step = simulate_step(jobs)
    parts = np.array(list(step.breakdown_s.values()))
    assert np.all(np.isfinite(parts))
    assert parts.min() >= -1e-12
    assert parts.sum() == pytest.approx(step.step_time_s[0])
    assert 0 < step.mfu[0] < 1
    assert step.peak_allocated_bytes.min() > 0
    assert np.all(step.peak_reserved_bytes > step.peak_allocated_bytes)
    assert all(0 <= step.diagnostics[name][0] <= 1 for name in SHARES)
    assert step.diagnostics["stage_imbalance"][0] >= 1 - 1e-9
    assert np.all(np.isfinite(list(step.diagnostics.values())))


@LAWS
@given(legal_jobs())
def test_what_a_size_of_one_does_not_need_costs_nothing(jobs: Jobs) -> None:
    step = simulate_step(jobs)
    parts, rounding = step.breakdown_s, 1e-12 * max(step.step_time_s[0], 1.0)
    for size, part in (("tp", "exposed_tp"), ("cp", "exposed_cp"), ("pp", "exposed_pp"), ("pp", "bubble")):
        assert getattr(jobs, size)[0] > 1 or abs(parts[part][0]) < rounding
    assert jobs.ep[0] * jobs.etp[0] > 1 or parts["exposed_ep"][0] == 0
    assert jobs.cluster.n_gpus > 1 or parts["exposed_dp"][0] == 0


@LAWS
@given(legal_jobs(), st.sampled_from(["memory_bytes_per_s", "link_bytes_per_s", "nic_bytes_per_s", "host_bytes_per_s"]))
def test_a_faster_part_never_slows_the_step(jobs: Jobs, rate: str) -> None:
    # Launches of a partly recomputed layer are repeated in proportion to its time, which moves with the rates.
    jobs = replace(jobs, recompute=jobs.recompute & Recompute.FULL)
    chip = jobs.cluster.accelerator
    faster = replace(jobs.cluster, accelerator=replace(chip, **{rate: 2 * getattr(chip, rate)}))
    before, after = (simulate_step(replace(jobs, cluster=c)).step_time_s[0] for c in (jobs.cluster, faster))
    assert after <= before * (1 + 1e-9)


@LAWS
@given(legal_jobs())
def test_twice_the_steps_micro_batches_take_between_once_and_twice_the_time(jobs: Jobs) -> None:
    once, twice = (simulate_step(replace(jobs, gbs=jobs.gbs * k)).step_time_s[0] for k in (1, 2))
    assert once < twice <= 2 * once * (1 + 1e-9)
