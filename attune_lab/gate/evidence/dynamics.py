"""What two runs computed besides gradients: losses, routing, updates, weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attune_lab.gate.evidence.bands import Deviation, Floors, Pair, Statistic, as_change, deviations, growth, log_ratio
from attune_lab.gate.evidence.families import Family
from attune_lab.gate.evidence.invariants import LOSS, placed, shown
from attune_lab.gate.verdict import Check
from attune_lab.signals.schema import StepSignals, group_of

SAME_WEIGHTS = 1e-4
"""Log ratio of the norms of a parameter drawn from the same numbers: rounding to bfloat16 moves that of a thousand
weights by less, another seed by 2e-2."""

AUXILIARY = 5.0
"""How much wider than the loss an auxiliary loss may differ: it is a mean over experts of products of two shares."""

UNCHANGED = 0.05
"""Share of weights that an update leaves as they were: about 0 in float32, most of them in bfloat16."""


@dataclass(frozen=True)
class _Test:
    """One signal: how it is measured, called and read."""

    name: str
    statistic: Statistic
    floor: float
    what: str
    family: Family
    ratio: bool = True
    grows: bool = False


def other_start(pair: Pair) -> str | None:
    """A parameter whose weights differ before the first update; None where all are equal or none was recorded."""
    before, after = pair.baseline.weight_norm, pair.candidate.weight_norm
    return next((n for n in before if n in after and not abs(log_ratio(before[n], after[n])) <= SAME_WEIGHTS), None)


def first_step(pair: Pair, floors: Floors) -> Iterator[Check]:
    """The checks of a step on equal weights and batch: losses and routing."""
    for test in (
        _Test("loss", losses, floors.loss, "loss", Family.LOSS),
        _Test("aux_loss", aux_losses, AUXILIARY * floors.loss, "auxiliary loss", Family.ROUTER),
        _Test("load", loads, floors.load, "share of tokens routed elsewhere", Family.ROUTER, ratio=False),
    ):
        yield from _checked(test, [pair])


def over_time(pairs: Sequence[Pair], floors: Floors) -> Iterator[Check]:
    """The checks of what happens from step to step: updates, weights left unchanged, weights at the end."""
    share = "share of weights left unchanged"
    for test, steps in (
        (_Test("update", update_norms, floors.update, "update norm", Family.OPTIMIZER, grows=True), pairs),
        (_Test("unchanged", unchanged, UNCHANGED, share, Family.PRECISION, ratio=False), pairs),
        (_Test("weights", weight_norms, floors.update, "weight norm", Family.OPTIMIZER), pairs[-1:]),
    ):
        yield from _checked(test, steps)


def losses(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of the loss and of logged losses of other heads, which are means like it."""
    heads = {name for name in before.logged.keys() & after.logged.keys() if name.endswith(" loss")} - {LOSS}
    ratios = {
        name: log_ratio(before.logged[name], after.logged[name]) for name in sorted(heads - after.aux_loss.keys())
    }
    return {LOSS: log_ratio(before.loss, after.loss), **ratios}


def aux_losses(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of recomputed auxiliary losses; one that disappears is infinitely far."""
    return {name: log_ratio(value, after.aux_loss.get(name, 0.0)) for name, value in before.aux_loss.items()}


def loads(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Share of the token-expert pairs that go to other experts, by layer: half the L1 distance of the histograms."""
    shares = {}
    for layer, old in before.expert_load.items():
        new = after.expert_load.get(layer, ())
        same = len(new) == len(old)
        moved = sum(abs(a - b) for a, b in zip(old, new, strict=False)) / 2
        shares[layer] = moved / max(sum(old), 1) if same else math.inf
    return shares


def update_norms(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of the groups' update norms."""
    old, new = by_group(before.update_norm), by_group(after.update_norm)
    return {group: log_ratio(norm, new[group]) for group, norm in old.items() if group in new}


def weight_norms(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Log ratios of the groups' weight norms."""
    old, new = by_group(before.weight_norm), by_group(after.weight_norm)
    return {group: log_ratio(norm, new[group]) for group, norm in old.items() if group in new}


def unchanged(before: StepSignals, after: StepSignals) -> dict[str, float]:
    """Differences of the shares of weights an update left as they were, by parameter."""
    return {n: after.unchanged[n] - share for n, share in before.unchanged.items() if n in after.unchanged}


def by_group(norms: Mapping[str, float]) -> dict[str, float]:
    """The norm of each group from those of its parameters."""
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        squares[group_of(name)] = squares.get(group_of(name), 0.0) + norm * norm
    return {group: math.sqrt(square) for group, square in squares.items()}


def _checked(test: _Test, pairs: Sequence[Pair]) -> Iterator[Check]:
    """The check of one signal over some steps; none where it was not recorded by both runs."""
    found = [
        (deviation, pair)
        for pair in pairs
        for deviation in deviations(test.statistic, pair, test.floor * (growth(pair, pairs[0]) if test.grows else 1.0))
    ]
    if not found:
        return
    key, broken = pairs[0].key + test.name, [item for item in found if item[0].excess > 1]
    if not broken:
        worst, pair = max(found, key=lambda item: item[0].excess)
        size = as_change(worst) if test.ratio else _size(test, worst)
        farthest = f"farthest {worst.place} {pair.when}, {size}"
        yield Check(key, "pass", f"The {test.what} agrees ({farthest}).", _figures(test, worst))
        return
    first, pair = broken[0]
    others = [d.place for d, p in broken if p is pair and d is not first]
    also = f"; also {shown(others)}" if others else ""
    reason = (
        f"The {test.what} of {placed(first.place)} {pair.when} is {_size(test, first)}{also}. Likely {test.family}."
    )
    yield Check(key, "reject", reason, _figures(test, first), test.family)


def _size(test: _Test, deviation: Deviation) -> str:
    value, limit = _figures(test, deviation).values()
    if test.ratio:
        return f"{value:.6g} times the baseline's (limit {limit:.6g})"
    return f"{100 * value:+.2g} % (limit {100 * limit:.2g} %)"


def _figures(test: _Test, deviation: Deviation) -> dict[str, float]:
    """Value and limit: as ratios, or as differences."""
    if not test.ratio:
        return {"value": deviation.value, "limit": deviation.limit}
    return {"value": math.exp(deviation.value), "limit": math.exp(deviation.limit)}
