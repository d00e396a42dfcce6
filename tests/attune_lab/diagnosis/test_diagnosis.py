"""Diagnosis: symptoms ranked by what they cost, from whatever a report tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import RunReport
from attune_lab.diagnosis import SIGNS, diagnose, metrics
from attune_lab.lessons.catalog import load


def report(**fields) -> RunReport:
    return RunReport(**{"label": "1", "status": "ok", "provenance": "measured", "steps": 8, **fields})


def test_fractions_of_the_step() -> None:
    found = metrics(report(breakdown_s={"compute": 6.0, "exposed_ep": 3.0, "bubble": 1.0, "optimizer": 0.0}), {})
    assert found["exposed_ep_frac"] == pytest.approx(0.3)
    assert found["bubble_frac"] == pytest.approx(0.1)
    assert found["compute_frac"] == pytest.approx(0.6)


def test_the_largest_loss_comes_first_with_its_figure() -> None:
    parts = {"compute": 6.0, "exposed_ep": 3.0, "exposed_tp": 0.5, "bubble": 0.5}
    diagnosis = diagnose(report(breakdown_s=parts), {})
    named = [symptom.name for symptom in diagnosis.symptoms]
    assert named[:4] == ["exposed_ep_a2a", "moe_slow", "exposed_tp_comm", "pipeline_bubble"]
    assert diagnosis.symptoms[0].evidence == "30.0% of the step waits for token dispatch and combine"


def test_memory_from_the_fullest_stage() -> None:
    diagnosis = diagnose(report(peak_memory_bytes=(50e9, 95e9), memory_capacity_bytes=100e9), {})
    assert diagnosis.variables["mem_peak_frac"] == pytest.approx(0.95)
    assert diagnosis.find(("borderline_memory",)) is not None
    assert diagnosis.find(("low_memory_use",)) is None


def test_out_of_memory_is_a_symptom() -> None:
    diagnosis = diagnose(report(status="oom"), {"recompute_level": 0})
    assert diagnosis.find(("oom_forward",)) is not None
    assert diagnosis.variables["oom"] is True


def test_a_report_without_figures_says_only_always() -> None:
    assert [symptom.name for symptom in diagnose(report(), {}).symptoms] == ["always"]


def test_every_symptom_is_in_the_vocabulary() -> None:
    assert {sign.symptom for sign in SIGNS} <= set(load().symptoms)


@given(st.dictionaries(st.sampled_from(["compute", "exposed_tp", "exposed_dp", "bubble", "host"]), st.floats(0, 1e4)))
def test_ranked_and_bounded(parts: dict[str, float]) -> None:
    diagnosis = diagnose(report(breakdown_s=parts), {})
    stakes = [symptom.at_stake for symptom in diagnosis.symptoms]
    assert stakes == sorted(stakes, reverse=True)
    assert all(0.0 <= stake <= 1.0 for stake in stakes)


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=9))
def test_jitter_does_not_depend_on_the_unit(times: list[float]) -> None:
    def spread(scale: float) -> float:
        return metrics(report(step_times_s=tuple(t * scale for t in [1.0, 1.0, 1.0, *times])), {})["step_cv"]

    assert spread(1000.0) == pytest.approx(spread(1.0), abs=1e-12)
