"""Tools that judge: symptoms of a run, two runs side by side, and what the gate says at this point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.agent.claude.session import facts
from attune_lab.agent.claude.toolbox import Refused, entry, figure, shortened
from attune_lab.agent.claude.tools.reading import RUN

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session

SYMPTOMS = 20
"""Symptoms shown, largest stake first."""


def diagnose(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Ranked symptoms of a run, each with the figure behind it."""
    run = session.run(arguments["run"])
    trial = session.journal.history.get(run.recipe)
    assert trial is not None
    if not trial.reports:
        raise Refused(f"{run.label} was lost to the infrastructure and says nothing of the recipe")
    found = session.journal.standing().diagnosis(trial)
    return {
        "run": trial.reports[-1].label,
        "symptoms": [
            {
                "symptom": symptom.name,
                "evidence": symptom.evidence,
                "share_of_step_at_stake": figure(symptom.at_stake, 3),
            }
            for symptom in found.symptoms[:SYMPTOMS]
        ],
    }


def compare_runs(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Two runs side by side, by our own timing."""
    first, second = session.run(arguments["first"]), session.run(arguments["second"])
    before, after = first.report.mean_step_time_s, second.report.mean_step_time_s
    parts = sorted({*first.report.breakdown_s, *second.report.breakdown_s})[:40]
    changed = session.task.space.changed(first.recipe, second.recipe)
    return {
        "changed": {key: list(pair) for key, pair in changed.items()},
        "gain": figure(before / after - 1, 3) if before and after else None,
        "noise_band": figure(session.journal.band(session.journal.history.get(second.recipe)), 3),
        "breakdown_s": {part: [figure(run.report.breakdown_s.get(part)) for run in (first, second)] for part in parts},
        "first": _short(facts(first)),
        "second": _short(facts(second)),
    }


def ask_gate(session: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The gate on the draft's settings, or on a run: its eight steps can be rejected, never passed."""
    gate, baseline = session.desk.gate, session.task.baseline
    if "run" not in arguments:
        verdict, what = gate.configuration(baseline, session.draft), "the settings of the draft"
    else:
        run, runs = session.run(arguments["run"]), [known.report for known in session.journal.baseline_runs]
        if run.recipe.digest == baseline.digest:
            raise Refused("that run is the baseline's own; the gate compares others with it")
        verdict = gate.judge(baseline, run.recipe, baseline_runs=runs, candidate_run=run.report, twin_runs=())
        what = f"run {run.label}"
    return {
        "of": what,
        "verdict": verdict.verdict,
        "reasons": [shortened(str(reason), 300) for reason in list(verdict.reasons)[:10]],
        "binding": False,
        "note": "The campaign asks the gate itself before anything ships; a run of the search can be rejected here, "
        "never passed.",
    }


def _short(found: dict[str, Any]) -> dict[str, Any]:
    kept = ("run", "status", "mean_step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_gb_by_stage")
    return {name: found[name] for name in kept}


TOOLS = (
    entry(
        diagnose,
        "Symptoms of a run (exposed communication, bubble, memory …), ranked by the share of the step at stake. "
        "Launches name one of them.",
        {"run": RUN},
    ),
    entry(
        compare_runs, "Two runs side by side: settings, step time, breakdown, memory.", {"first": RUN, "second": RUN}
    ),
    entry(
        ask_gate,
        "What the correctness gate says: of the draft's settings, or of a run's loss curve. It binds nobody; the "
        "campaign asks the gate again before anything ships.",
        None,
        {"run": RUN},
    ),
)
