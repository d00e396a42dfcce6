"""From one run to ranked symptoms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.contracts import Estimate, RunReport
from attune_lab.diagnosis.endings import endings
from attune_lab.diagnosis.figures import metrics
from attune_lab.diagnosis.memory import out_of_memory, single_rank
from attune_lab.diagnosis.series import over_time
from attune_lab.diagnosis.signs import Symptom, signs_of
from attune_lab.logs import Failure, TrainingLog, read_log


@dataclass(frozen=True)
class Diagnosis:
    """What a run says.

    Attributes:
        symptoms: the largest stake first; each name once, with its strongest evidence.
        variables: effective settings and metrics, for the preconditions of lessons.
    """

    symptoms: tuple[Symptom, ...]
    variables: Mapping[str, Any]

    def find(self, names: Sequence[str]) -> Symptom | None:
        """The symptom with the largest stake among ``names``, or None."""
        return next((symptom for symptom in self.symptoms if symptom.name in names), None)


def diagnose(
    report: RunReport,
    settings: Mapping[str, Any],
    log: TrainingLog | None = None,
    *,
    estimate: Estimate | None = None,
) -> Diagnosis:
    """Symptoms of a run, largest stake first.

    Args:
        report: one run; breakdown, diagnostics, memory and step times are used where present.
        settings: the effective settings of the recipe that ran.
        log: its log as read, if any; what it says are claims, and our own timing comes before its.
        estimate: what the cost model expects of the recipe. It stands in for a breakdown that is missing, and tells
            what fills a stage that is out of memory.
    """
    failure = failure_of(report, log)
    variables = {**settings, **metrics(report, settings, estimate), **_loose(failure)}
    found = [*_ends(report, settings, log, failure, estimate), *over_time(report, settings, log), *signs_of(variables)]
    strongest = sorted(found, key=lambda symptom: -symptom.at_stake)  # stable: of equals, the order of evidence
    by_name: dict[str, Symptom] = {}
    for symptom in strongest:
        by_name.setdefault(symptom.name, symptom)
    variables |= _told(by_name)
    return Diagnosis((*by_name.values(), Symptom("always", "no symptom needed", 0.0)), variables)


def _told(symptoms: Mapping[str, Symptom]) -> dict[str, Any]:
    """What preconditions of lessons ask of the symptoms themselves."""
    known: dict[str, Any] = {name: name in symptoms for name in ("oom_nccl", "oom_late")}
    return {**known, "data_wait_frac": symptoms["data_stall"].at_stake} if "data_stall" in symptoms else known


def _ends(
    report: RunReport,
    settings: Mapping[str, Any],
    log: TrainingLog | None,
    failure: Failure | None,
    estimate: Estimate | None,
) -> Iterator[Symptom]:
    """What the run died of."""
    if report.status != "oom" and not (failure is not None and failure.kind.startswith("oom")):
        yield from endings(report, log, failure)
        return
    if log is not None:
        yield from single_rank(log.memory_bytes, settings)
    done = len(report.step_times_s) or (len(log.steps) if log else 0)
    yield from out_of_memory(failure, done, settings, estimate)


def _loose(failure: Failure | None) -> dict[str, float]:
    """The share of memory that an out-of-memory message calls reserved but unallocated, as ``frag_frac``."""
    said = failure.memory_bytes if failure is not None else {}
    if not said.get("capacity") or "unallocated" not in said:
        return {}
    return {"frag_frac": said["unallocated"] / said["capacity"]}


def failure_of(report: RunReport, log: TrainingLog | None) -> Failure | None:
    """The line that ended the run: the log's first cause, else what the report quotes."""
    if log is not None and log.failure is not None:
        return log.failure
    return read_log(report.message + "\n").failure if report.message else None
