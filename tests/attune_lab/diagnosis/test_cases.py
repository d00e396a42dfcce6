"""Public cases of symptom, cause and right answer (`cases.yaml`): what is told first, and what must not be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from attune_lab.cluster.simulated import SimulatedCluster
from attune_lab.contracts import INFRASTRUCTURE_FAULTS, RunReport
from attune_lab.cost_model import SimulatedCostModel
from attune_lab.diagnosis import Diagnosis, after_change, diagnose
from attune_lab.gate.campaign import CampaignGate
from attune_lab.gate.defects import active
from attune_lab.gate.facts import facts_from
from attune_lab.lessons.catalog import load as load_catalog
from attune_lab.logs import LoggedStep, TrainingLog, read_log
from attune_lab.recipe import Recipe
from attune_lab.recipe.constraints import errors
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from simulator.hardware import ClusterSpec, parse_cluster

ALL: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
TOLD = [case for case in ALL if "first" in case or "never" in case]


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["source"].replace("/", "-")) for case in cases]


def recipe_of(case: dict[str, Any]) -> tuple[Recipe, ClusterSpec]:
    given = case["recipe"]
    recipe = load(given["name"]).recipe.with_settings(
        {k: tuple(v) if isinstance(v, list) else v for k, v in given.get("settings", {}).items()}
    )
    return recipe.with_environment(given.get("environment", {})), parse_cluster(given["cluster"])


def report_of(fields: dict[str, Any]) -> RunReport:
    return RunReport(**{"label": "1", "status": "ok", "provenance": "measured", "steps": 40, **fields})


def log_of(case: dict[str, Any], report: RunReport) -> TrainingLog | None:
    if "log" in case:
        return read_log(case["log"])
    if "log_step_s" in case:
        times = [case["log_step_s"]] * len(report.step_times_s)
    elif "memory_ramp" in case:
        memory = np.linspace(*case["memory_ramp"][1:], case["memory_ramp"][0])
        return TrainingLog("x", tuple(LoggedStep(i, other={"MemAllocated": m}) for i, m in enumerate(memory, start=1)))
    else:
        return None
    return TrainingLog("x", tuple(LoggedStep(i, step_time_s=seconds) for i, seconds in enumerate(times, start=1)))


def diagnosed(case: dict[str, Any]) -> Diagnosis:
    fields = dict(case.get("report", {}))
    if "ramp" in case:
        count, start, end = case["ramp"]
        fields["step_times_s"] = tuple(np.linspace(start, end, count))
    report, settings, estimate = report_of(fields), dict(case.get("settings", {})), None
    if "recipe" in case and "constraint" not in case:
        recipe, cluster = recipe_of(case)
        settings = {**effective(recipe, cluster), **settings}
        if case.get("estimate"):
            estimate = SimulatedCostModel(cluster).estimate([recipe])[0]
            assert not estimate.problems
    return diagnose(report, settings, log_of(case, report), estimate=estimate)


def levers(diagnosis: Diagnosis) -> set[str]:
    """What lessons offer that a symptom calls for and whose preconditions hold."""
    called = {symptom.name for symptom in diagnosis.symptoms if symptom.at_stake >= 0.01}
    lessons = [one for one in load_catalog().lessons if called & set(one.symptoms) and one.holds(diagnosis.variables)]
    return {key for lesson in lessons for move in lesson.moves for key in move}


@pytest.mark.parametrize("case", named(TOLD))
def test_the_right_symptom_comes_first(case: dict[str, Any]) -> None:
    diagnosis = diagnosed(case)
    symptoms = [symptom.name for symptom in diagnosis.symptoms]
    if "before" in case:
        changed = after_change(report_of(case["before"]), report_of(case["report"]), expected=case["expected"])
        symptoms = [symptom.name for symptom in changed]
    assert symptoms[0] in case.get("first", symptoms)
    assert set(case.get("also", ())) <= set(symptoms)
    assert not set(case.get("never", ())) & set(symptoms)


@pytest.mark.parametrize("case", named([case for case in ALL if "levers" in case or "no_levers" in case]))
def test_lessons_offer_the_right_levers(case: dict[str, Any]) -> None:
    offered = levers(diagnosed(case))
    assert set(case.get("levers", ())) <= offered
    assert not set(case.get("no_levers", ())) & offered


@pytest.mark.parametrize("case", named([case for case in ALL if "constraint" in case]))
def test_the_stack_refuses_what_cannot_start(case: dict[str, Any]) -> None:
    assert case["constraint"] in {finding.id for finding in errors(*recipe_of(case))}


@pytest.mark.parametrize("case", named([case for case in ALL if "defect" in case]))
def test_the_gate_knows_the_defect(case: dict[str, Any]) -> None:
    assert case["defect"] in {defect.id for defect in active(facts_from(case["facts"]))[0]}
    cured = active(facts_from({**case["facts"], **case["cured"]}))
    assert case["defect"] not in {defect.id for defect in cured[0]}


@pytest.mark.parametrize("case", named([case for case in ALL if "recomputed" in case]))
def test_the_gate_passes_what_changes_a_log_and_no_training(case: dict[str, Any]) -> None:
    recipe, spec = recipe_of(case)
    modules = {"recompute_granularity": "selective", "recompute_modules": tuple(case["recomputed"])}
    changed = recipe.with_settings(modules)
    cluster = SimulatedCluster(spec, 100)
    runs = [cluster.run(one, 20, label=label) for label, one in (("1", recipe), ("2", recipe), ("3", changed))]
    verdict = CampaignGate(spec).judge(
        recipe, changed, baseline_runs=runs[:2], candidate_run=runs[2], twin_runs=[cluster.run(changed, 20, label="4")]
    )
    assert verdict.verdict == "pass", verdict.reasons


@pytest.mark.parametrize("case", named([case for case in ALL if "gate" in case]))
def test_the_gate_rejects_and_nobody_retries(case: dict[str, Any]) -> None:
    recipe, cluster = load("qwen3-235b-a22b").recipe, parse_cluster("64xH200-SXM5-141GB")
    failed = report_of(case["report"])
    assert failed.status not in INFRASTRUCTURE_FAULTS
    good = report_of({"loss": [2.0] * 20, "step_times_s": [1.0] * 20, "steps": 20})
    verdict = CampaignGate(cluster).judge(
        recipe, recipe, baseline_runs=[good, good], candidate_run=failed, twin_runs=[]
    )
    assert verdict.verdict == case["gate"]
