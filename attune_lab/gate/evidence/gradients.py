"""Gradients of two runs on the same weights and batch: their norms, and how far they point apart.

Adam divides a constant factor out of its updates and clipping removes the rest, so most wrong gradients never show in
a loss; on equal weights and batch they show at once. Two statistics see different faults. Rounding turns a gradient
without changing its length, so the *norm* has a narrow band and shows every factor. The *error*, estimated from
sketches, is the length of the difference; it has a wider band and shows gradients of the right length that point
elsewhere (another mask, another label, a permuted position).

For sketches s = R g with `SKETCHES` rows of independent signs, E (s_c - s_b)^2 = ||g_c - g_b||^2, and the mean over
the rows is that times about chi^2_16 / 16: an estimate is below 1.91 times the true error but for one in a million.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.gate.evidence.bands import Deviation, Floors, Pair, as_change, deviations, growth, log_ratio
from attune_lab.gate.evidence.dynamics import by_group, loads
from attune_lab.gate.evidence.families import Family, factor_name, family_of
from attune_lab.gate.evidence.invariants import placed, shown, total_norm
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import StepSignals, group_of

NEGLIGIBLE = 1e-4
"""A gradient this small beside that of the whole model is rounding where it should be 0, as that of a key's bias."""


def check(pair: Pair, floors: Floors, settings: Mapping[str, Any]) -> Iterator[Check]:
    """The two checks of a pair of records made on the same weights and batch: norm and error."""
    if not pair.baseline.grad_norm.keys() & pair.candidate.grad_norm.keys():
        return
    floors = floors.routed(max(loads(pair.baseline, pair.candidate).values(), default=0.0))
    norms = _Found(deviations(group_norms, pair, floors.norm), deviations(parameter_norms, pair, floors.parameter))
    yield _norm_check(f"{pair.key}gradient.norm", pair, norms, settings)
    errors = _Found(
        deviations(group_errors, pair, floors.error), deviations(parameter_errors, pair, floors.parameter_error)
    )
    if errors.groups:
        yield _error_check(f"{pair.key}gradient.error", pair, errors)


def later(pairs: Sequence[Pair], floors: Floors, settings: Mapping[str, Any]) -> Iterator[Check]:
    """The check of the groups' norms after the first step: the first one outside, or the farthest inside."""
    found = [
        (_Found(deviations(group_norms, pair, growth(pair, pairs[0]) * floors.drift), ()), pair) for pair in pairs[1:]
    ]
    found = [(each, pair) for each, pair in found if each.groups]
    if found:
        outside = [(each, pair) for each, pair in found if each.first is not None]
        each, pair = outside[0] if outside else max(found, key=lambda item: item[0].worst.excess)
        yield _norm_check("gradient.later", pair, each, settings)


def group_norms(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of the groups' gradient norms."""
    return _ratios(by_group(before.grad_norm), by_group(after.grad_norm), NEGLIGIBLE * total_norm(before))


def parameter_norms(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of the parameters' gradient norms."""
    return _ratios(before.grad_norm, after.grad_norm, NEGLIGIBLE * total_norm(before))


def group_errors(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Relative errors of the groups' gradients."""
    return _relative(by_group(_errors(before, after)), by_group(before.grad_norm), total_norm(before))


def parameter_errors(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Relative errors of the parameters' gradients."""
    return _relative(_errors(before, after), before.grad_norm, total_norm(before))


def _ratios(before: Mapping[str, float], after: Mapping[str, float], least: float) -> dict[str, float]:
    """Log ratios, where norms below ``least`` count as that; a norm that falls to 0 has lost its gradient."""
    return {
        name: -math.inf
        if after[name] == 0 and norm > least
        else log_ratio(_floor(norm, least), _floor(after[name], least))
        for name, norm in before.items()
        if name in after
    }


def _floor(value: float, least: float) -> float:
    return value if math.isnan(value) else max(value, least)


def _errors(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Estimates of ||g_after - g_before|| by parameter."""
    return {
        name: math.dist(rows, after.grad_sketch[name]) / math.sqrt(len(rows))
        for name, rows in before.grad_sketch.items()
        if rows and len(after.grad_sketch.get(name, ())) == len(rows)
    }


def _relative(errors: Mapping[str, float], norms: Mapping[str, float], total: float) -> dict[str, float]:
    least = NEGLIGIBLE * total
    return {name: _divide(error, max(norms.get(name, 0.0), least)) for name, error in errors.items()}


def _divide(error: float, norm: float) -> float:
    return error / norm if norm > 0 else (math.inf if error > 0 else 0.0)


@dataclass(frozen=True)
class _Found:
    """Deviations of groups and of parameters, each the farthest outside its limit first."""

    groups: Sequence[Deviation]
    parameters: Sequence[Deviation]

    @property
    def worst(self) -> Deviation:
        return max((*self.groups[:1], *self.parameters[:1]), key=lambda d: d.excess)

    @property
    def first(self) -> Deviation | None:
        """The group farthest outside, or the parameter where all groups agree; None where all is inside."""
        return next((d for d in (*self.groups, *self.parameters) if d.excess > 1), None)

    def deviating(self) -> list[str]:
        """The groups outside, or those of the parameters outside, the farthest first."""
        groups = [d.place for d in self.groups if d.excess > 1]
        return groups or list(dict.fromkeys(group_of(d.place) for d in self.parameters if d.excess > 1))

    def others(self) -> str:
        """The worst parameter and the other groups, as the tail of a sentence."""
        parameters = [d.place for d in self.parameters if d.excess > 1 and d is not self.first]
        groups = [d.place for d in self.groups if d.excess > 1 and d is not self.first]
        worst = f"; worst parameter {parameters[0]}" if parameters else ""
        return worst + (f"; also {shown(groups)}" if groups else "")


def _norm_check(key: str, pair: Pair, found: _Found, settings: Mapping[str, Any]) -> Check:
    """The check of the norms of groups and parameters."""
    first, shift = found.first, found.worst
    if first is None:
        farthest = f"{shift.place} {as_change(shift)}"
        return Check(key, "pass", f"Gradient norms agree {pair.when} (farthest {farthest}).", _figures(shift))
    factor = factor_name(math.exp(first.value), settings)
    named = f", which is {factor}" if factor else ""
    reason = f"The gradient norm of {placed(first.place)} {pair.when} is {_times(first)}{named}{found.others()}"
    family = _family(found, pair)
    return Check(key, "reject", f"{reason}. Likely {family}.", _figures(first), family)


def _error_check(key: str, pair: Pair, found: _Found) -> Check:
    """The check of the errors of groups and parameters."""
    first, shift = found.first, found.worst
    if first is None:
        farthest = f"{shift.place} is {100 * shift.value:.2g} % off, limit {100 * shift.limit:.2g} %"
        figures = {"value": shift.value, "limit": shift.limit}
        return Check(key, "pass", f"Gradients agree {pair.when} (farthest {farthest}).", figures)
    family = _family(found, pair)
    off = f"{100 * first.value:.3g} % off (limit {100 * first.limit:.2g} %)"
    reason = f"The gradient of {placed(first.place)} {pair.when} is {off}"
    figures = {"value": first.value, "limit": first.limit}
    return Check(key, "reject", f"{reason}{found.others()}. Likely {family}.", figures, family)


def _family(found: _Found, pair: Pair) -> Family:
    ratios = group_norms(pair.baseline, pair.candidate)
    family = family_of({group: ratios.get(group, 0.0) for group in found.deviating()}, len(ratios))
    # Sharpened attention that goes wrong turns all gradients, which elsewhere speaks of the loss.
    return Family.ATTENTION if family is Family.LOSS and pair.key == "probe.attention." else family


def _times(deviation: Deviation) -> str:
    """The ratio of two norms with its limit."""
    return f"{math.exp(deviation.value):.4g} times the baseline's (limit {math.exp(deviation.limit):.4g})"


def _figures(deviation: Deviation) -> dict[str, float]:
    return {"value": math.exp(deviation.value), "limit": math.exp(deviation.limit)}
