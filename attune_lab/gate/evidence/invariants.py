"""What must hold in any one run, whatever it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attune_lab.gate.evidence.families import Family
from attune_lab.gate.evidence.schedule import learning_rate
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import GROUPS, Signals, StepSignals

LOSS, NORM, RATE = "lm loss", "grad norm", "learning rate"
"""Names of Megatron-LM's log line. **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/training/training.py."""

SUMS = 2e-4
"""Relative limit of a logged or applied value against the recomputed one: sums in float32 leave 1e-6 on one CPU, and
accelerators add in more orders."""

PRINTED_NORM = 5e-4
PRINTED_AUX = 0.01
"""What printing leaves: three decimals of a gradient norm, two of an auxiliary loss near 1."""

LEARNING_RATE = 1e-4
LONGEST = 100
"""Characters shown of a name."""

SIZES = {
    "grad_norm": "gradient norm", "update_norm": "update norm", "weight_norm": "weight norm",
    "unchanged": "share of unchanged weights", "aux_loss": "auxiliary loss",
}  # fmt: skip
"""Fields whose numbers are finite and not negative in a healthy run."""


def check(baseline: Signals, candidate: Signals) -> list[Check]:
    """One check per invariant of the candidate; what the baseline breaks in the same way is noted and passes."""
    inherited = {c.name for c in alone(baseline) if c.outcome == "reject"}
    return [_excused(c) if c.outcome == "reject" and c.name in inherited else c for c in alone(candidate)]


def alone(signals: Signals) -> list[Check]:
    """One check per invariant of one run."""
    settings, steps = signals.effective, signals.steps
    if not steps:
        return [Check("invariant", "skipped", "The run recorded no step: nothing is known of its inside.")]
    return [
        _named("replicas", steps, _replicas, Family.REDUCTION, "All copies of every weight are equal"),
        _named("stale", steps, _stale, Family.STALE, "Every forward used the stored weights"),
        _named("logged_loss", steps, _logged_loss, Family.LOGGING, "The logged loss is the loss"),
        _named("logged_norm", steps, _logged_norm, Family.CLIPPING, "The logged gradient norm is the norm"),
        _named("clip", steps, lambda s: clip_factor(s, settings), Family.CLIPPING, "Clipping used the right norm"),
        _named("logged_aux", steps, _logged_aux, Family.ROUTER, "Logged auxiliary losses are the losses"),
        _named("skipped", steps, _skipped, Family.OPTIMIZER, "No step was skipped"),
        _named("load", steps, lambda s: _load(s, settings), Family.DROPPED, "Every token reached its experts"),
        _named("dropped", steps, lambda s: _dropped(s, settings), Family.DROPPED, "No routed token was dropped"),
        _named("finite", steps, _finite, Family.PRECISION, "Losses, gradients and weights are finite"),
        _frozen(steps),
        _schedule(steps, settings),
    ]


def clip_factor(record: StepSignals, settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """What is wrong with the clip factor of a step: it must be min(1, clip_grad / norm).

    **Source:** NVIDIA/Megatron-LM@d98e8a64 megatron/core/optimizer/clip_grads.py ``clip_grad_by_total_norm_fp32``.
    """
    threshold = settings.get("clip_grad")
    if record.clip_factor is None or threshold is None or not record.grad_norm:
        return
    norm = total_norm(record)
    wanted = min(1.0, threshold / (norm + 1e-6)) if threshold > 0 else 1.0
    if _off(record.clip_factor, wanted) > SUMS:
        yield (
            f"gradients were multiplied by {record.clip_factor:.4g}, not by {wanted:.4g} (norm {norm:.4g})",
            _off(record.clip_factor, wanted),
        )


def total_norm(record: StepSignals) -> float:
    """The gradient norm over all parameters."""
    return math.sqrt(sum(norm * norm for norm in record.grad_norm.values()))


def shown(names: Iterable[str], at_most: int = 3) -> str:
    """A list of names for a sentence, cut with a count."""
    names = list(names)
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(name[:LONGEST] for name in names[:at_most]) + more


def placed(place: str) -> str:
    """A group or a parameter for a sentence: the names of groups are words of the field too."""
    return f"the group {place}" if place in GROUPS else place


def _named(
    name: str,
    steps: Sequence[StepSignals],
    find: Callable[[StepSignals], Iterable[tuple[str, float]]],
    family: Family,
    holds: str,
) -> Check:
    """The check of an invariant over all recorded steps; the reason is the first step that breaks it."""
    broken = [(record.step, *finding) for record in steps for finding in find(record)]
    if not broken:
        return Check(f"invariant.{name}", "pass", f"{holds}.")
    step, what, size = broken[0]
    more = len({number for number, *_ in broken}) - 1
    also = f", and at {more} later step{'s' if more > 1 else ''}" if more else ""
    reason = f"At step {step} {what}{also}."
    return Check(f"invariant.{name}", "reject", reason, {"step": float(step), "value": size}, family)


def _excused(check: Check) -> Check:
    return Check(check.name, "pass", f"{check.reason} The baseline has it too.", check.figures, check.family)


def _off(value: float, wanted: float) -> float:
    """Relative difference, infinite where it is no number."""
    if value == wanted:
        return 0.0
    off = abs(value - wanted) / max(abs(wanted), 1e-30)
    return off if math.isfinite(off) else math.inf


def _replicas(record: StepSignals) -> Iterator[tuple[str, float]]:
    if record.replicas:
        yield f"copies of weights that must be equal differ ({shown(record.replicas)})", float(len(record.replicas))


def _stale(record: StepSignals) -> Iterator[tuple[str, float]]:
    if record.stale:
        yield f"the forward did not use the stored weights of {shown(record.stale)}", float(len(record.stale))


def _logged_loss(record: StepSignals) -> Iterator[tuple[str, float]]:
    logged = record.logged.get(LOSS)
    if logged is not None and _off(logged, record.loss) > SUMS:
        yield f"the run logs a loss of {logged:.6g} where its tokens have {record.loss:.6g}", _off(logged, record.loss)


def _logged_norm(record: StepSignals) -> Iterator[tuple[str, float]]:
    logged = record.logged.get(NORM)
    norm = total_norm(record)
    if logged is not None and record.grad_norm and not abs(logged - norm) <= SUMS * norm + PRINTED_NORM:
        yield f"the run logs a gradient norm of {logged:.5g} where its gradients have {norm:.5g}", _off(logged, norm)


def _logged_aux(record: StepSignals) -> Iterator[tuple[str, float]]:
    for name in sorted(record.aux_loss.keys() & record.logged.keys()):
        logged, value = record.logged[name], record.aux_loss[name]
        if _off(logged, value) > PRINTED_AUX:
            yield f"the run logs {name} {logged:.5g} where it is {value:.5g}", _off(logged, value)


def _skipped(record: StepSignals) -> Iterator[tuple[str, float]]:
    if record.skipped:
        yield "the optimizer skipped its update", 1.0


def _dropped(record: StepSignals, settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if record.dropped and settings.get("capacity_factor") is None:
        yield f"{record.dropped} token-expert pairs were routed and not computed, with no capacity set", record.dropped


def _load(record: StepSignals, settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every layer routes each token of the batch to ``topk`` experts, whatever its mask."""
    topk, length = settings.get("topk"), settings.get("seq_len")
    if topk is None or length is None:
        return
    wanted = record.sequences * length * topk
    for layer, loads in record.expert_load.items():
        if sum(loads) != wanted:
            yield f"the experts of {layer} received {sum(loads)} token-expert pairs, not {wanted}", float(sum(loads))
            return


def _finite(record: StepSignals) -> Iterator[tuple[str, float]]:
    if not math.isfinite(record.loss):
        yield "the loss is not finite", math.inf
    for field, what in SIZES.items():
        bad = [name for name, size in getattr(record, field).items() if not 0 <= size < math.inf]
        if bad:
            yield f"the {what} of {shown(bad)} is {getattr(record, field)[bad[0]]:g}", math.inf


def _frozen(steps: Sequence[StepSignals]) -> Check:
    """Weights that stay as they are in every step in which others move."""
    moving = [s for s in steps if not s.skipped and any(update > 0 for update in s.update_norm.values())]
    names = moving[0].update_norm if moving else {}
    still = [n for n in names if all(s.update_norm.get(n, 0.0) == 0.0 for s in moving)]
    if not still:
        return Check("invariant.frozen", "pass", "Every weight trains.")
    reason = f"{shown(still)} never changed in {len(moving)} updates that moved other weights."
    return Check("invariant.frozen", "reject", reason, {"value": float(len(still))}, Family.FROZEN)


def _schedule(steps: Sequence[StepSignals], settings: Mapping[str, Any]) -> Check:
    """The logged learning rate against the schedule of the settings.

    Megatron-LM logs the rate of an update or of the one after it, by version; either is right if it is kept.
    """
    name, logged = "invariant.learning_rate", [(s.step, s.logged[RATE]) for s in steps if RATE in s.logged]
    if not logged or learning_rate(1, settings) is None:
        return Check(name, "skipped", "The learning rate or its schedule was not recorded.")
    worst: list[tuple[float, int, float, float]] = []
    for ahead in (0, -1):
        rates = [(step, rate, learning_rate(step + ahead, settings) or 0.0) for step, rate in logged]
        worst.append(max((_off(rate, wanted), step, rate, wanted) for step, rate, wanted in rates))
    off, step, rate, wanted = min(worst)
    if off <= LEARNING_RATE:
        return Check(name, "pass", "The logged learning rate follows the schedule.")
    reason = f"At step {step} the run logs a learning rate of {rate:.5g}; its schedule gives {wanted:.5g}."
    return Check(name, "reject", reason, {"step": float(step), "value": off}, Family.OPTIMIZER)
