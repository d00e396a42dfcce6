"""Probes: single steps under conditions chosen to show a fault, and figures that must be zero.

A 20-step run on full sequences never clips in vain, never meets a short sequence and hardly feels an auxiliary loss:
faults that need such a condition stay hidden until the one step that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.gate.evidence import gradients
from attune_lab.gate.evidence.bands import TWIN_FACTOR, Floors, Pair, precision
from attune_lab.gate.evidence.dynamics import first_step
from attune_lab.gate.evidence.families import Family
from attune_lab.gate.evidence.invariants import SUMS, clip_factor, total_norm
from attune_lab.gate.evidence.ledgers import difference
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import Probe, Signals, StepSignals

THRESHOLD = "clip_grad"
"""A figure that says what the probe ``clip`` clips at; it is no result."""

OF_DRAWN_WEIGHTS = ("attention",)
"""Sharpened attention makes a mean of drawn scores choose; learnt scores choose by themselves, and get chaotic."""

EXACT = 1e-6
REPEATABLE = 1e-3
"""A step repeated from the same state may differ by this where kernels add in any order; not in deterministic mode."""

STILL = 1e-4
"""Largest relative change of the loss of a token that must not move: what kernels round otherwise in another batch."""

STILL_IN_FP8 = 2e-2
"""The same where a scale is taken from a whole tensor: a later token then rounds earlier ones anew, by up to 6e-3 of a
token's loss in the project's trainer."""

UPDATE = 2e-3
"""A step of plain gradient descent is rate x clip factor x gradient, but for the rounding of weights and norms."""


@dataclass(frozen=True)
class _Reading:
    """How a figure is read: what it points at, the value it must have, and how far it may be off."""

    family: Family
    wanted: float = 0.0
    floor: float = EXACT


READINGS = {
    "repeat.difference": _Reading(Family.RACE, floor=REPEATABLE),
    "sgd.ratio": _Reading(Family.SCALE, wanted=1.0, floor=UPDATE),
    "sgd.clip_difference": _Reading(Family.CLIPPING, floor=SUMS),
    "resume.loss": _Reading(Family.RESUME),
    "resume.weights": _Reading(Family.RESUME),
    "perturbation.future": _Reading(Family.ATTENTION, floor=STILL),
    "perturbation.document": _Reading(Family.POSITIONS, floor=STILL),
    "perturbation.masked": _Reading(Family.LABELS, floor=STILL),
    "perturbation.shift": _Reading(Family.LABELS, floor=STILL),
}
"""By probe and figure; any other figure must be 0."""


def figures(baseline: Signals, candidate: Signals) -> Iterator[Check]:
    """The checks of the figures of every probe, and of the probes the candidate did not run."""
    for name in baseline.probes.keys() - candidate.probes.keys():
        reason = f"The candidate did not run the probe {name}, the baseline did: run it."
        yield Check(f"probe.{name}", "inconclusive", reason)
    for name, probe in candidate.probes.items():
        before = baseline.probes.get(name)
        for figure, value in probe.figures.items():
            if figure != THRESHOLD:
                yield _figure(name, figure, value, before, candidate.effective)


def steps(
    baseline: Signals, candidate: Signals, twins: Sequence[Signals], floors: Floors, *, leave_out: bool = False
) -> Iterator[Check]:
    """The checks of the step of every probe: like those of the first step, and the clip factor by itself.

    Args:
        leave_out: leave out the probes that say something about drawn weights alone.
    """
    for name, probe in candidate.probes.items():
        if leave_out and name in OF_DRAWN_WEIGHTS:
            reason = f"The probe {name} is one of drawn weights; these have learnt something already."
            yield Check(f"probe.{name}", "skipped", reason)
        elif probe.step is not None:
            before = baseline.probes.get(name)
            known = before.step if before is not None else None
            seen = [step for twin in twins if name in twin.probes and (step := twin.probes[name].step) is not None]
            yield from _clip(name, known, probe.step, probe.figures, candidate.effective)
            yield from _step(name, known, probe.step, seen, floors, candidate.effective)


def cost(signals: Signals) -> float:
    """What the probes cost, in forward-backward steps of the run."""
    return sum(probe.cost_steps for probe in signals.probes.values())


def _step(
    name: str,
    known: StepSignals | None,
    record: StepSignals,
    twins: Sequence[StepSignals],
    floors: Floors,
    settings: Mapping[str, Any],
) -> Iterator[Check]:
    """A probe's step against the baseline's."""
    if known is None:
        yield Check(f"probe.{name}", "skipped", f"The baseline has no step of the probe {name} to compare with.")
    elif how := difference(known, record):
        yield Check(f"probe.{name}.batch", "reject", f"The batch of the probe {name} {how[0]}.", {}, how[1])
    else:
        pair = Pair(f"probe.{name}.", f"in the probe {name}", known, record, twins)
        yield from gradients.check(pair, floors, settings)
        yield from first_step(pair, floors)


def _clip(
    name: str,
    known: StepSignals | None,
    record: StepSignals,
    figures: Mapping[str, float],
    settings: Mapping[str, Any],
) -> Iterator[Check]:
    """The clip factor of a probe's step.

    The probe ``clip`` has a threshold of its own: the figure `THRESHOLD`, or the norm the baseline's step came out at.
    """
    threshold = settings.get("clip_grad")
    if name == "clip":
        threshold = figures.get(THRESHOLD)
        if threshold is None and known is not None and known.clip_factor is not None:
            threshold = known.clip_factor * total_norm(known)
    for what, off in clip_factor(record, {"clip_grad": threshold}):
        yield Check(f"probe.{name}.clip", "reject", f"In the probe {name} {what}.", {"value": off}, Family.CLIPPING)


def _figure(name: str, figure: str, value: float, before: Probe | None, settings: Mapping[str, Any]) -> Check:
    """The check of a figure against its wanted value, or that of the baseline where it is farther off."""
    reading = READINGS.get(f"{name}.{figure}", _Reading(Family.LOSS))
    floor = EXACT if name == "repeat" and settings.get("deterministic_mode") else reading.floor
    if floor == STILL and precision(settings) == "fp8":
        floor = STILL_IN_FP8
    old = before.figures.get(figure, reading.wanted) if before is not None else reading.wanted
    inherited = abs(old - reading.wanted) if math.isfinite(old) else 0.0
    allowed = max(floor, TWIN_FACTOR * inherited)
    key, measured = f"probe.{name}.{figure}", {"value": value, "limit": allowed}
    what = f"The figure {figure} of the probe {name} is {value:.3g}, wanted {reading.wanted:g} within {allowed:.1g}"
    if abs(value - reading.wanted) <= allowed:
        return Check(key, "pass", f"{what}{', as wide as the baseline has it' if inherited > floor else ''}.", measured)
    return Check(key, "reject", f"{what}. Likely {reading.family}.", measured, reading.family)
