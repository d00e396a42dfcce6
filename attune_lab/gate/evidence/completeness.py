"""Whether the candidate recorded all that the baseline did: a signal that is left out would hide its fault."""

from __future__ import annotations

from collections.abc import Iterator

from attune_lab.gate.evidence.invariants import shown
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import Signals, StepSignals

HASHES = ("samples", "labels", "positions")
MAPS = (
    "logged", "grad_norm", "grad_sketch", "update_norm", "weight_norm", "unchanged", "expert_load", "aux_loss",
)  # fmt: skip


def check(baseline: Signals, candidate: Signals) -> list[Check]:
    """A question about what is missing; empty where nothing is."""
    found = list(_missing(baseline, candidate))
    if not found:
        return []
    reason = f"The candidate did not record {shown(found)}, the baseline did: record both runs with the same hooks."
    return [Check("ledger.recorded", "inconclusive", reason)]


def _missing(baseline: Signals, candidate: Signals) -> Iterator[str]:
    """What is missing, as words for a sentence."""
    if baseline.effective and not candidate.effective:
        yield "its settings in force"
    for before in baseline.steps:
        after = candidate.at(before.step)
        if after is not None:
            yield from (f"{what} at step {before.step}" for what in missing_fields(before, after))
    for name, probe in baseline.probes.items():
        other = candidate.probes.get(name)
        if other is None:
            continue  # `probes` says so
        if probe.figures.keys() - other.figures.keys():
            yield f"{shown(sorted(probe.figures.keys() - other.figures.keys()))} in the probe {name}"
        if probe.step is not None and other.step is None:
            yield f"the step of the probe {name}"
        elif probe.step is not None and other.step is not None:
            yield from (f"{what} in the probe {name}" for what in missing_fields(probe.step, other.step))


def missing_fields(before: StepSignals, after: StepSignals) -> Iterator[str]:
    """What the second record of a step lacks of the first."""
    yield from (f"the {name}" for name in HASHES if getattr(before, name) and not getattr(after, name))
    for name in MAPS:
        old, new = getattr(before, name), getattr(after, name)
        lacking = [key for key in old if key not in new]
        if lacking:
            yield f"the {name.replace('_', ' ')} of {shown(lacking)}"
    if before.clip_factor is not None and after.clip_factor is None:
        yield "the clip factor"
    if any(len(rows) != len(after.grad_sketch.get(name, rows)) for name, rows in before.grad_sketch.items()):
        yield "whole gradient sketches"
