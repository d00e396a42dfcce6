"""The evidence of a verdict as one self-contained HTML page: reasons, curves, gradients by group, ledgers, checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from attune_lab.contracts import UserError
from attune_lab.gate import charts, convergence
from attune_lab.gate.evidence import gradients
from attune_lab.gate.evidence.bands import Deviation, Pair, deviations
from attune_lab.gate.evidence.compare import floors_between, pairs_of
from attune_lab.gate.evidence.dynamics import by_group, loads
from attune_lab.gate.evidence.invariants import RATE
from attune_lab.gate.run_files import Run
from attune_lab.gate.verdict import Verdict
from attune_lab.signals.schema import SKETCHES, StepSignals


@dataclass(frozen=True)
class GroupRow:
    """The gradient of one group in both runs."""

    group: str
    before: float
    after: float
    norm: Deviation
    error: Deviation | None

    @property
    def ratio(self) -> float:
        """Candidate's norm / baseline's."""
        return math.exp(self.norm.value)

    @property
    def position(self) -> float:
        """Where the ratio stands on a gauge whose middle half is the band, in per cent."""
        value = self.norm.value / self.norm.limit
        return 2.0 if math.isnan(value) else min(max(50.0 + 25.0 * value, 2.0), 98.0)


@dataclass(frozen=True)
class LedgerRow:
    """One step: cells by column, each a text and whether it differs from the baseline's."""

    step: int
    cells: Mapping[str, tuple[str, bool]]


def render(verdict: Verdict, baseline: Run, candidate: Run, twins: Sequence[Run] = ()) -> str:
    """The page. It loads nothing from elsewhere; every text from a run is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(files("attune_lab").joinpath("gate/page.html").read_text(encoding="utf-8"))
    pairs = _pairs(baseline, candidate, twins)
    return template.render(
        verdict=verdict, baseline=baseline, candidate=candidate, twins=twins, sketches=SKETCHES,
        charts=_charts(baseline, candidate, twins), groups=_groups(pairs[0], baseline, candidate) if pairs else [],
        when=pairs[0].when if pairs else "", ledger=[_ledger(p.baseline, p.candidate) for p in pairs],
        width=charts.WIDTH, height=charts.HEIGHT, left=charts.LEFT, right=charts.RIGHT, bottom=charts.BOTTOM,
    )  # fmt: skip


def write(page: str, path: Path) -> None:
    """Writes the page.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); name a file in a folder that exists."
        ) from error


def _pairs(baseline: Run, candidate: Run, twins: Sequence[Run]) -> list[Pair]:
    if baseline.signals is None or candidate.signals is None:
        return []
    return pairs_of(baseline.signals, candidate.signals, [t.signals for t in twins if t.signals is not None])


def _charts(baseline: Run, candidate: Run, twins: Sequence[Run]) -> list[charts.Chart]:
    """Losses, their relative difference with the band, and gradient norms."""
    runs = [*((twin, "twin") for twin in twins), (baseline, "baseline"), (candidate, "candidate")]
    losses = [charts.Series(run.name, role, run.curve.steps.astype(float), run.curve.loss) for run, role in runs]
    norms = [
        charts.Series(run.name, role, run.curve.steps.astype(float), run.curve.norms["grad_norm"])
        for run, role in runs
        if "grad_norm" in run.curve.norms
    ]
    apart = [_difference(baseline, run, role) for run, role in runs if run is not baseline]
    found = convergence.limits(baseline.curve, candidate.curve, [twin.curve for twin in twins])
    band = None if found is None else (found[0].astype(float), -100 * found[1], 100 * found[1])
    drawn = [charts.draw("loss", losses), charts.draw("loss, per cent from the baseline", apart, band)]
    return [chart for chart in (*drawn, charts.draw("gradient norm", norms)) if chart is not None]


def _difference(baseline: Run, run: Run, role: str) -> charts.Series:
    """100 log(loss / baseline's loss) at the steps both have."""
    steps = np.intersect1d(baseline.curve.steps, run.curve.steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(run.curve.at(steps).loss) - np.log(baseline.curve.at(steps).loss)
    return charts.Series(run.name, role, steps.astype(float), 100 * ratio)


def _groups(pair: Pair, baseline: Run, candidate: Run) -> list[GroupRow]:
    """The groups of the first pair of records, the farthest outside its band first."""
    if baseline.signals is None or candidate.signals is None:
        return []
    floors = floors_between(baseline.signals, candidate.signals)
    floors = floors.routed(max(loads(pair.baseline, pair.candidate).values(), default=0.0))
    errors = {d.place: d for d in deviations(gradients.group_errors, pair, floors.error)}
    old, new = by_group(pair.baseline.grad_norm), by_group(pair.candidate.grad_norm)
    norms = deviations(gradients.group_norms, pair, floors.norm)
    return [GroupRow(d.place, old[d.place], new[d.place], d, errors.get(d.place)) for d in norms]


def _ledger(before: StepSignals, after: StepSignals) -> LedgerRow:
    """What the candidate's step recorded, with what differs marked."""
    cells = {
        "loss": (f"{after.loss:.6g}", False),
        "tokens": (str(after.tokens), after.tokens != before.tokens),
        "sequences": (str(after.sequences), after.sequences != before.sequences),
    }
    for name, column in (("samples", "inputs"), ("labels", "labels"), ("positions", "positions")):
        old, new = getattr(before, name), getattr(after, name)
        known = bool(old and new)
        cells[column] = ("" if not known else ("equal" if old == new else "differ"), known and old != new)
    old_rate, rate = before.logged.get(RATE), after.logged.get(RATE)
    cells["learning rate"] = ("" if rate is None else f"{rate:.4g}", rate != old_rate)
    factor = after.clip_factor
    cells["clip factor"] = ("" if factor is None else f"{factor:.4g}", False)
    cells["copies"] = ("differ" if after.replicas else "equal", bool(after.replicas))
    cells["dropped"] = (str(after.dropped), after.dropped != before.dropped)
    return LedgerRow(after.step, cells)
