"""From one report to ranked symptoms, each with the figure behind it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attune_lab.contracts import RunReport


@dataclass(frozen=True)
class Sign:
    """A symptom read off one metric.

    Attributes:
        symptom: word of the catalog's vocabulary.
        metric: name among the metrics.
        limit: the symptom shows beyond this value.
        above: whether beyond means above.
        sentence: evidence for a person; ``{x}`` is the metric.
        neutral: value of the metric at which nothing is lost. The distance to it, times ``share``, is the
            part of the step at stake, by which symptoms are ranked.
    """

    symptom: str
    metric: str
    limit: float
    sentence: str
    above: bool = True
    neutral: float = 0.0
    share: float = 1.0

    def shows(self, value: float) -> bool:
        """Whether ``value`` lies beyond the limit."""
        return value > self.limit if self.above else value < self.limit

    def at_stake(self, value: float) -> float:
        """The fraction of the step that removing the symptom could save at most."""
        return abs(value - self.neutral) * self.share


# Limits: a communication or a bubble below 2 % of the step cannot repay a change that must clear a noise band of
# about 1 %. Memory is borderline above 90 % of capacity because routing and fragmentation move the peak by several
# per cent, and low below 75 % because the next cheaper level of recomputation typically needs more than the
# difference. Sound large GEMMs reach 70 to 75 % of the peak on Hopper.
SIGNS = (
    Sign("exposed_tp_comm", "exposed_tp_frac", 0.02, "{x:.1%} of the step waits for tensor-parallel collectives"),
    Sign("exposed_ep_a2a", "exposed_ep_frac", 0.02, "{x:.1%} of the step waits for token dispatch and combine"),
    Sign("moe_slow", "exposed_ep_frac", 0.1, "{x:.1%} of the step waits for experts", share=0.5),
    Sign("exposed_dp_comm", "exposed_dp_frac", 0.02, "{x:.1%} of the step waits for data-parallel collectives"),
    Sign("exposed_cp_comm", "exposed_cp_frac", 0.02, "{x:.1%} of the step waits for context-parallel exchange"),
    Sign("exposed_pp_p2p", "exposed_pp_frac", 0.01, "{x:.1%} of the step waits for pipeline sends"),
    Sign("pipeline_bubble", "bubble_frac", 0.03, "{x:.1%} of the step is pipeline bubble"),
    Sign("launch_bound", "host_gap_frac", 0.03, "{x:.1%} of the step is launch gaps"),
    Sign("stage_imbalance", "stage_imbalance", 1.05, "the slowest stage takes {x:.2f}x the mean", neutral=1, share=0.5),
    Sign("low_gemm_efficiency", "gemm_eff", 0.65, "GEMMs reach {x:.0%} of peak", above=False, neutral=0.75, share=0.5),
    Sign("full_recompute_in_use", "full_recompute", 0.5, "whole layers are recomputed", share=0.25),
    Sign("recompute_heavy", "recompute_level", 0.5, "recomputation is at level {x:.0f} of 3", share=0.05),
    Sign("small_microbatch", "tokens_per_expert", 256, "an expert sees {x:.0f} tokens", above=False, share=1e-6),
    Sign("low_memory_use", "mem_peak_frac", 0.75, "the peak is {x:.0%} of memory", above=False, neutral=1, share=0.2),
    Sign("borderline_memory", "mem_peak_frac", 0.9, "the peak is {x:.0%} of memory", share=0.05),
    Sign("fragmentation", "frag_frac", 0.05, "{x:.1%} of memory is fragmented", share=0.2),
    Sign("step_time_jitter", "step_cv", 0.02, "steps vary by {x:.1%}", share=0.5),
    Sign("long_sequence", "seq_len", 8191, "sequences have {x:.0f} tokens", share=1e-6),
    Sign("many_experts", "num_experts", 31, "the model has {x:.0f} experts", share=1e-5),
)  # fmt: skip


@dataclass(frozen=True)
class Symptom:
    """One symptom.

    Attributes:
        name: word of the catalog's vocabulary.
        evidence: a clause with the figure behind it.
        at_stake: fraction of the step that removing it could save at most.
    """

    name: str
    evidence: str
    at_stake: float


@dataclass(frozen=True)
class Diagnosis:
    """What a report says.

    Attributes:
        symptoms: the largest stake first.
        variables: effective settings and metrics, for the preconditions of lessons.
    """

    symptoms: tuple[Symptom, ...]
    variables: Mapping[str, Any]

    def find(self, names: tuple[str, ...]) -> Symptom | None:
        """The symptom with the largest stake among ``names``, or None."""
        return next((symptom for symptom in self.symptoms if symptom.name in names), None)


def diagnose(report: RunReport, settings: Mapping[str, Any]) -> Diagnosis:
    """Symptoms of ``report``, largest stake first.

    Args:
        report: one run; breakdown, diagnostics and memory are used where present.
        settings: the effective settings of the recipe that ran.
    """
    variables = {**settings, **metrics(report, settings)}
    symptoms = [Symptom("always", "no symptom needed", 0.0)]
    for sign in SIGNS:
        value = variables.get(sign.metric)
        if value is not None and sign.shows(float(value)):
            symptoms.append(Symptom(sign.symptom, sign.sentence.format(x=value), sign.at_stake(float(value))))
    if variables["oom"]:
        names = ("oom_first_step", "oom_forward", "oom_backward", "oom_optimizer_step")
        symptoms += [Symptom(name, "the run is out of memory", 1.0) for name in names]
    return Diagnosis(tuple(sorted(symptoms, key=lambda s: (-s.at_stake, s.name))), variables)


def metrics(report: RunReport, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Metric variables of ``report``; a metric the report cannot tell is absent."""
    found: dict[str, Any] = {
        "oom": report.status == "oom",
        "trial_failed": report.status not in ("ok", "oom"),
        "full_recompute": float(settings.get("recompute_level") == 3),
        "timed_iterations": len(report.timed_step_times_s),
    }
    found |= {name: value for name, value in report.diagnostics.items() if not math.isnan(value)}
    found |= _fractions(report.breakdown_s)
    if report.peak_memory_bytes and report.memory_capacity_bytes:
        found["mem_peak_frac"] = max(report.peak_memory_bytes) / report.memory_capacity_bytes
    timed = report.timed_step_times_s
    if len(timed) > 1:
        found["step_cv"] = statistics.stdev(timed) / statistics.fmean(timed)
    return found


def _fractions(breakdown_s: Mapping[str, float]) -> dict[str, float]:
    """Shares of the step by part of the breakdown."""
    total = sum(breakdown_s.values())
    if total <= 0:
        return {}
    names = {"bubble": "bubble_frac", "host": "host_gap_frac"}
    return {
        names.get(part, f"{part}_frac"): seconds / total
        for part, seconds in breakdown_s.items()
        if part in names or part.startswith("exposed_")
    }
