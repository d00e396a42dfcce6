"""What holds of any report: scale, monotony, absence, and that the simulated cluster is always diagnosable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import Estimate, RunReport
from attune_lab.diagnosis import diagnose, metrics
from attune_lab.lessons.catalog import load as load_catalog
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from attune_lab.space import SearchSpace
from simulator.hardware import parse_cluster
from simulator.step import BREAKDOWN

EXPOSED = {
    "exposed_tp": "exposed_tp_comm",
    "exposed_ep": "exposed_ep_a2a",
    "exposed_dp": "exposed_dp_comm",
    "exposed_cp": "exposed_cp_comm",
    "exposed_pp": "exposed_pp_p2p",
    "bubble": "pipeline_bubble",
    "host": "launch_bound",
}
PARTS = st.fixed_dictionaries({part: st.floats(0.0, 10.0) for part in BREAKDOWN})
WORDS = set(load_catalog().symptoms)
CLUSTER = parse_cluster("64xH200-SXM5-141GB")
SETTINGS = effective(load("qwen3-235b-a22b").recipe, CLUSTER)


def report(**fields) -> RunReport:
    return RunReport(**{"label": "1", "status": "ok", "provenance": "measured", "steps": 8, **fields})


def ranks(parts: dict[str, float], **known) -> list[str]:
    return [symptom.name for symptom in diagnose(report(breakdown_s=parts), known).symptoms]


@given(PARTS.filter(lambda parts: sum(parts.values()) > 1e-3), st.floats(1e-3, 1e3))
def test_the_unit_of_time_changes_no_share(parts, unit):
    mine, scaled = (metrics(report(breakdown_s={k: u * v for k, v in parts.items()}), SETTINGS) for u in (1.0, unit))
    shares = {name: value for name, value in mine.items() if name.endswith("_frac")}
    assert {name: scaled[name] for name in shares} == pytest.approx(shares, rel=1e-6, abs=1e-9)


@given(PARTS.filter(lambda parts: parts["compute"] > 0.1), st.sampled_from(sorted(EXPOSED)), st.floats(0.1, 10.0))
def test_a_second_more_of_a_wait_never_lowers_its_rank(parts, part, more):
    """Nothing else gains: settings without experts and recomputation, whose losses would grow with the wait."""
    before, after = ranks(parts), ranks({**parts, part: parts[part] + more})
    name = EXPOSED[part]
    if name in before:
        assert name in after
        assert after.index(name) <= before.index(name)
    assert diagnose(report(breakdown_s={**parts, part: 10 * sum(parts.values())}), {}).symptoms[0].name == name


ANY = st.one_of(st.floats(), st.floats(0, 1), st.just(math.nan), st.just(math.inf))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(BREAKDOWN), ANY),
    st.dictionaries(st.sampled_from(["gemm_eff", "stage_imbalance", "tokens_per_expert", "frag_frac"]), ANY),
    st.lists(ANY, max_size=12),
    st.lists(ANY, max_size=3),
    st.sampled_from(["ok", "oom", "hang", "crash", "invalid", "timeout", "diverged", "node_failure", "preempted"]),
    st.one_of(st.none(), ANY),
)
def test_no_figure_breaks_it(parts, ratios, times, peaks, status, mfu):
    given_report = report(
        status=status, breakdown_s=parts, diagnostics=ratios, step_times_s=tuple(times), mfu=mfu,
        peak_memory_bytes=tuple(peaks), memory_capacity_bytes=80e9,
    )  # fmt: skip
    for known in ({}, SETTINGS):
        symptoms = diagnose(given_report, known).symptoms
        assert all(0 <= symptom.at_stake <= 1 for symptom in symptoms)
        assert {symptom.name for symptom in symptoms} <= WORDS
        assert len({symptom.name for symptom in symptoms}) == len(symptoms)


@given(st.sampled_from(BREAKDOWN), st.sampled_from([math.nan, math.inf, -1.0]))
def test_what_is_no_figure_makes_no_symptom(part, value):
    assert ranks({part: value}) == ["always"]
    assert ranks({"compute": 1.0, part: value} if part != "compute" else {part: value})[-1] == "always"
    names = ranks({"compute": 1.0, "host": 0.5, part: value})
    assert EXPOSED.get(part) not in set(names) - {"launch_bound"}


def test_absent_figures_make_no_symptom():
    assert ranks({}) == ["always"]
    assert [s.name for s in diagnose(report(diagnostics={"gemm_eff": 0.2}), {}).symptoms] == ["always"]


def test_an_estimate_stands_in_and_says_so():
    parts = {"compute": 1.0, "exposed_dp": 0.5}
    estimate = Estimate(1.5, 1.0, 9e10, 8e10, parts, {"gemm_eff": 0.66, "mem_peak_frac": 1.1})
    finished = report(step_times_s=(1.5,) * 8)
    first = diagnose(finished, {}, estimate=estimate).symptoms[0]
    assert (first.name, first.at_stake) == ("exposed_dp_comm", pytest.approx(1 / 3))
    assert first.evidence.endswith("(expected by the cost model)")
    assert diagnose(finished, {}, estimate=estimate).find(("borderline_memory",)) is None  # it did fit
    seen = finished.model_copy(update={"breakdown_s": {"compute": 1.0, "host": 0.5}})
    assert diagnose(seen, {}, estimate=estimate).symptoms[0].name == "launch_bound"  # what was seen counts
    failed = report(status="hang")
    assert [s.name for s in diagnose(failed, {}, estimate=estimate).symptoms] == ["hang", "always"]


def test_settings_alone_bound_a_loss_and_weigh_little():
    finished = report(step_times_s=(1.0,) * 8)
    found = diagnose(finished, {"pp": 8, "num_microbatches": 7}).symptoms[0]
    assert (found.name, found.at_stake) == ("pipeline_bubble", pytest.approx(0.5 / 4))
    assert found.evidence == "50.0% of the step is pipeline bubble (at most, by the settings)"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(100, 1000))
def test_every_report_of_the_simulated_cluster_is_told(draw, world):
    recipe = SPACE.sample(np.random.default_rng(draw))
    told = diagnose(SimulatedCluster(CLUSTER, world).run(recipe, 8, label="1"), effective(recipe, CLUSTER))
    assert {symptom.name for symptom in told.symptoms} <= WORDS
    assert len(told.symptoms) > 1
    assert all(symptom.evidence for symptom in told.symptoms)


SPACE = SearchSpace(load("qwen3-235b-a22b").recipe.with_settings({"pp": 4}), CLUSTER)
