"""Explanations add up to what they explain, and name every constant that a prediction rests on."""

import itertools
import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from test_legal_jobs import legal_jobs

from simulator.calibration.report import as_json
from simulator.calibration.validate import Figure, Validation
from simulator.collectives import Group, all_reduce_seconds
from simulator.explain import explain, step_time_sd, typical_errors
from simulator.explain.peak_memory import memory_term
from simulator.explain.step_time import step_term
from simulator.explain.terms import Term, quantity, seconds, source_of
from simulator.hardware import parse_cluster
from simulator.job import Jobs, Precision, Recompute, Schedule, make_jobs
from simulator.kernels import gemm_seconds
from simulator.memory import MEMORY_PARTS, peak_memory
from simulator.memory_physics import MEMORY_PRIORS, MemoryPhysics
from simulator.models import models
from simulator.physics import PRIORS, SOURCES, Physics
from simulator.posterior import DEFAULT_PHYSICS, Posterior
from simulator.recording import recording
from simulator.step import BREAKDOWN, pace, simulate_step, step_seconds


def terms_of(jobs: Jobs) -> tuple[Term, Term]:
    with recording() as calls:
        simulate_step(jobs)
    return step_term(jobs, calls[0]), memory_term(jobs, calls[0].last("peak_memory"))


def assert_sums(root: Term) -> None:
    for path, term in root.walk():
        if term.children:
            total = sum(child.value for child in term.children)
            assert total == pytest.approx(term.value, rel=1e-9, abs=1e-12 * root.value), path


def named(root: Term, *names: str) -> Term:
    for name in names:
        [root] = [child for child in root.children if child.name == name]
    return root


HOPPER = parse_cluster("64xH100-SXM5-80GB")
JOBS = {
    "dense": make_jobs(models()["llama-3-70b"], HOPPER, tp=4, pp=4, vpp=5, gbs=256, seq_len=8192),
    "experts": make_jobs(
        models()["deepseek-v3"], parse_cluster("256xB200-SXM-180GB"), pp=8, vpp=2, ep=32, gbs=1024, seq_len=4096,
        precision=Precision.MXFP8, ep_overlap=True, recompute=Recompute.MLA_UP_PROJ | Recompute.MOE_ACT,
    ),
    "long": make_jobs(
        models()["llama-3-8b"], HOPPER, cp=8, gbs=64, seq_len=131072, zero_stage=3, recompute=Recompute.FULL
    ),
    "hybrid": make_jobs(models()["nemotron-3-nano-30b-a3b"], HOPPER, ep=8, gbs=256, seq_len=8192),
    "dualpipe": make_jobs(
        models()["glm-4.5"], HOPPER, pp=4, ep=16, gbs=512, seq_len=4096, schedule=Schedule.DUALPIPE
    ),
}  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(legal_jobs())
def test_parts_add_up_to_the_prediction_whatever_the_job(jobs: Jobs) -> None:
    time, memory = terms_of(jobs)
    step = simulate_step(jobs)
    assert time.value == step.step_time_s[0]
    assert [(child.name, child.value) for child in time.children] == [(n, step.breakdown_s[n][0]) for n in BREAKDOWN]
    assert memory.value == step.peak_reserved_bytes.max()
    assert [(c.name, c.value) for c in memory.children[:6]] == [(n, step.memory_bytes[n][0]) for n in MEMORY_PARTS]
    assert_sums(time)
    assert_sums(memory)


@pytest.mark.parametrize("jobs", JOBS.values(), ids=JOBS)
def test_nothing_is_left_over_where_the_parts_are_known(jobs):
    time, memory = terms_of(jobs)
    assert_sums(time)
    assert_sums(memory)
    names = {term.name for root in (time, memory) for _, term in root.walk()}
    assert ("slowed by communication beside it" in names) == bool(jobs.ep_overlap[0] or jobs.tp[0] > 1)
    assert ("gathered weights" in names) == (jobs.zero_stage[0] == 3)
    assert ("inputs of recomputed layers" in names) == bool(jobs.recompute[0] & Recompute.FULL)


@pytest.mark.parametrize("jobs", JOBS.values(), ids=JOBS)
def test_what_closes_a_sum_is_what_it_is_called(jobs):
    """Remainders are not where errors of the explanation hide."""
    with recording() as calls:
        simulate_step(jobs)
    time, physics, slowest = step_term(jobs, calls[0]), DEFAULT_PHYSICS, pace(jobs.cluster, DEFAULT_PHYSICS)
    hidden = calls[0].last("data_parallel").result.hidden[0]
    slowed = named(time, "compute", "slowed by data-parallel traffic").value
    assert slowed == pytest.approx(physics.contention * hidden * slowest, rel=1e-6)
    once = named(time, "host", "once a step").value
    assert once == pytest.approx(physics.step_fixed_s * slowest, rel=1e-6)
    everyone = Group(np.array([jobs.cluster.n_gpus]), np.array([1]), jobs.cluster)
    norm = all_reduce_seconds(everyone, physics, np.zeros(1), jobs.nvls)[0] * slowest
    assert named(time, "optimizer", "all-reduce of the norm").value == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("jobs", JOBS.values(), ids=JOBS)
def test_the_numbers_in_a_formula_give_its_value(jobs):
    """A product written out, ``1.2 ms x 12 on the stage x 64 micro-batches x 1.02``, is the term's value."""
    checked = 0
    for root in terms_of(jobs):
        for path, term in root.walk():
            match = re.fullmatch(r"([\d.,]+) (s|ms|us|B|kB|MB|GB)( [^x;]*)?((?: x [\d.,]+[^x;]*)+)", term.formula)
            if match:
                factors = [float(f.replace(",", "")) for f in re.findall(r" x ([\d.,]*\d)", match[4])]
                value = float(match[1].replace(",", "")) * SIZES[match[2]] * math.prod(factors)
                assert value == pytest.approx(term.value, rel=0.01), path
                checked += 1
    assert checked >= 4


SIZES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def test_a_kept_tensor_is_priced_as_it_is_counted_by_hand():
    kept = named(terms_of(JOBS["dense"])[1], "activations", "attention", "input of the norm").value
    in_flight = (2 * 4 - 1 + 4 * 4) / 5  # interleaved 1F1B, first of four stages, five chunks
    assert kept == pytest.approx(2 * 8192 * 8192 / 4 * 20 * in_flight)  # bytes x hidden x tokens / tp x layers


def test_matrix_products_add_up_to_the_flops_of_the_layers():
    """Six FLOPs a parameter and token, spread over the products of the slowest stage."""
    layers = named(terms_of(JOBS["dense"])[0], "compute")
    text = [t.formula for part in ("attention", "mlp") for t in named(layers, part, "forward").children]
    shapes = [t.split("; ")[1].split(" at ")[0].replace(",", "").split(" x ") for t in text if " x " in t]
    weights = sum(int(n) * int(k) for _, n, k in shapes) * 4  # tensor-parallel ranks
    shape = models()["llama-3-70b"]
    width = shape.head_dim
    attention = shape.hidden * width * (2 * shape.heads + 2 * shape.kv_heads)
    assert weights == attention + 3 * shape.hidden * shape.ffn
    assert {int(m) for m, _, _ in shapes} == {8192}


@pytest.mark.parametrize("name", ["dense", "experts", "long"])
def test_every_constant_that_moves_the_prediction_is_named(name):
    jobs = JOBS[name]
    found = explain(jobs)
    before = step_seconds(jobs)[0]
    for constant in PRIORS:
        after = step_seconds(jobs, replace(DEFAULT_PHYSICS, **{constant: getattr(DEFAULT_PHYSICS, constant) * 1.001}))
        moved = (after[0] / before - 1) / 0.001
        given_ = {one.constant: one.elasticity for one in found.step_time.influences}
        assert given_.get(constant, 0.0) == pytest.approx(moved, rel=0.02, abs=2e-4), constant
    memory = DEFAULT_PHYSICS.memory
    whole = peak_memory(jobs, memory).peak_reserved_bytes.max()
    for constant in MEMORY_PRIORS:
        more = replace(memory, **{constant: getattr(memory, constant) * 1.001})
        moved = (peak_memory(jobs, more).peak_reserved_bytes.max() / whole - 1) / 0.001
        given_ = {one.constant: one.elasticity for one in found.peak_memory.influences}
        assert given_.get(constant, 0.0) == pytest.approx(moved, rel=0.02, abs=2e-4), constant


def test_influences_reach_every_level_and_carry_their_provenance():
    found = explain(JOBS["dense"])
    for path, term in found.step_time.walk():
        if term.value:
            elasticities = {one.constant: one.elasticity for one in term.influences}
            assert elasticities["pace"] == pytest.approx(1, rel=1e-4), path
            sizes = [abs(one.elasticity) for one in term.influences]
            assert sizes == sorted(sizes, reverse=True)
    assert all(one.what and one.source for one in found.step_time.influences)
    [link] = [one for one in found.step_time.influences if one.constant == "link_speed"]
    assert link.source == SOURCES["AIC"]
    product = next(t for _, t in found.step_time.walk() if t.name == "matrix product")
    assert "held-out median error" in product.source
    data = found.as_data()
    assert set(data["step_time"]["elasticities"]) <= set(data["constants"])
    assert data["step_time"]["children"][0]["name"] == "compute"


def test_every_constant_is_declared_with_its_prior():
    """What has no prior could not be found by moving it."""
    assert {f.name for f in fields(Physics)} - {"memory"} == set(PRIORS)
    assert {f.name for f in fields(MemoryPhysics)} == set(MEMORY_PRIORS)


def test_the_error_of_a_prediction_is_that_of_constants_drawn_as_they_are_known():
    jobs, random = JOBS["experts"], np.random.default_rng(7)
    prior = Posterior.prior()
    root = random.normal(size=(len(prior.constants), len(prior.constants))) * 0.02
    posterior = replace(prior, covariance=root @ root.T)
    drawn = []
    for _ in range(400):
        shifts = root @ random.normal(size=len(prior.constants))
        values = {n: PRIORS[n].moved(s) for n, s in zip(prior.constants, shifts.tolist(), strict=True)}
        drawn.append(step_seconds(jobs, replace(Physics(), **values))[0])
    assert step_time_sd(jobs, Physics(), posterior)[0] == pytest.approx(np.std(drawn), rel=0.1)


def test_an_unfitted_constant_is_as_uncertain_as_its_prior():
    jobs, none = (
        JOBS["dense"],
        replace(Posterior.prior(), constants=(), shifts=np.zeros(0), covariance=np.zeros((0, 0))),
    )
    assert step_time_sd(jobs, Physics(), none) == pytest.approx(step_time_sd(jobs, Physics(), Posterior.prior()))


def test_one_job_is_explained_at_a_time():
    with pytest.raises(ValueError, match="one job, not 2"):
        explain(make_jobs(models()["llama-3-8b"], HOPPER, tp=[1, 2], gbs=64, seq_len=4096))


def test_typical_errors_are_those_of_the_report():
    row = {"group": "H100-SXM5-80GB", "time_rows": 90, "memory_rows": 0, "time_bias": 0.01, "time_median": 0.05}
    figure = Figure(0.04, 0.04, 0.002, 2000, False, "step time")
    nothing = np.zeros(0)
    tables = {"accelerator": [row], "model": []}
    content = as_json(Validation({"time_median": figure}, tables, nothing, nothing, nothing), {})
    errors = typical_errors("H100-SXM5-80GB", "llama-3-8b", content)
    assert [(e.of, e.among, e.median, e.bias, e.runs) for e in errors] == [
        ("step time", "H100-SXM5-80GB", 0.05, 0.01, 90),
        ("step time", "all", 0.04, None, 2000),
    ]
    assert typical_errors("V100", "llama-3-8b", content) == errors[1:]
    assert typical_errors("V100", "llama-3-8b", {}) == ()


def test_numbers_are_written_for_reading():
    values = (0.0, 3.2e-9, 1.5e-6, 0.01234, 2.5, 1234.5)
    assert [seconds(value) for value in values] == ["0 s", "3.2 ns", "1.5 us", "12.3 ms", "2.5 s", "1,234 s"]
    assert [quantity(size) for size in (12, 67.1e6, 2e9)] == ["12 B", "67.1 MB", "2 GB"]
    assert quantity(6.72e14, "FLOP/s") == "672 TFLOP/s"


def test_sources_are_read_from_docstrings():
    assert source_of(gemm_seconds) == "form and constants fitted on ai-dynamo/aiconfigurator@095f58a."
    assert source_of(itertools.chain.from_iterable) == ""
