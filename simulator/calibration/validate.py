"""How true the simulator is: errors of predictions for rows that the constants were not fitted to.

A held-out prediction comes from the fit without the row's model (or source); `Fit.without` takes one Gauss-Newton
step from the full fit, and the row is then simulated with those constants.

Shape letters:  N = rows of the data set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.fit import Fit, fit, select
from simulator.calibration.measurements import LeverPair, Outcome, load_lever_pairs, sweep_cell
from simulator.calibration.observations import Observations, predict, predict_speed

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

VISIBLE = 0.02
"""One published point proves no difference below about this (docs/measurements.md, change between releases)."""
_CLOSE = 0.03
_DRAWS = 200
_SWEEP = 8  # rows from which on a cell has an order worth judging


@dataclass(frozen=True)
class Figure:
    """One number of the accuracy report.

    Attributes:
        value: the number.
        target: what it should be at most (errors) or at least (``higher_is_better``); None without a target.
        noise: standard deviation over resampled models (or cells): what it moves by without getting better or worse.
        count: rows, pairs or cells behind it.
        higher_is_better: which way is good.
        what: in words.
    """

    value: float
    target: float | None
    noise: float
    count: int
    higher_is_better: bool
    what: str

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.higher_is_better else self.value <= self.target

    def worse_than(self, earlier: Figure) -> bool:
        """Whether this is worse than ``earlier`` by more than a quarter of its noise, and by more than 0.002.

        The rows are the same in both, so that a change weighs more than the noise of drawing other rows.
        """
        change = (earlier.value - self.value) * (1 if self.higher_is_better else -1)
        return bool(change > max(earlier.noise / 4, 0.002))


@dataclass(frozen=True)
class Validation:
    """The report.

    Attributes:
        figures: by key.
        tables: errors of step time and memory by source, model and accelerator: lists of rows.
        held_out_speed: prediction by the fit without the row's model, shape (N,).
        other_sources_speed: prediction by the fit without the row's source, shape (N,).
        memory_bytes: predicted peak memory, shape (N,).
    """

    figures: Mapping[str, Figure]
    tables: Mapping[str, Sequence[Mapping[str, str | float | int]]]
    held_out_speed: Floats
    other_sources_speed: Floats
    memory_bytes: Floats


def held_out(observations: Observations, full: Fit, groups: NDArray[np.str_]) -> Floats:
    """Speed of every row by the fit without its group, shape (N,); ``groups`` has shape (N,)."""
    speed = np.full(len(observations.rows), np.nan)
    for group in np.unique(groups[observations.priced]):
        mine = groups == group
        shifts = full.without(mine[full.rows])
        batches = [batch for batch in observations.batches if mine[list(batch.rows)].any()]
        found = predict_speed(batches, mine.size, full.layout.posterior(shifts).physics)
        speed[mine] = found[mine]
    return speed


def validate(observations: Observations, full: Fit, *, workers: int = 1) -> Validation:
    """The accuracy report of a fit; ``workers`` processes share the refits."""
    models, sources = observations.column("model"), observations.column("source_id")
    by_model = held_out(observations, full, models)
    by_source = held_out(observations, full, sources)
    everything = predict(observations.batches, len(observations.rows), full.posterior.physics)
    single = fit(observations, select(observations, ["vtrain_single"]), start=full.posterior, workers=workers)
    transferred = predict_speed(observations.batches, len(observations.rows), single.posterior.physics)
    figures = dict(_speed_figures(observations, by_model, by_source))
    figures |= dict(_transfer_figures(observations, transferred))
    figures |= dict(_order_figures(observations, by_model))
    figures |= dict(_lever_figures(observations, load_lever_pairs(), by_model, everything.memory_bytes))
    figures |= dict(_memory_figures(observations, everything.memory_bytes, everything.demand))
    figures["coverage"] = _coverage(observations)
    tables = {
        name: _table(observations, observations.column(column), by_model, everything.memory_bytes)
        for name, column in (("source", "source_id"), ("accelerator", "accelerator"), ("model", "model"))
    }
    return Validation(figures, tables, by_model, by_source, everything.memory_bytes)


def _figure(
    statistic: Callable[[Floats], float], values: Floats, groups: NDArray[np.str_], target: float | None, what: str,
    *, higher_is_better: bool = False,
) -> Figure:  # fmt: skip
    """A statistic of ``values``, its noise from resampling whole groups."""
    random = np.random.default_rng(0)
    names, member = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(member == k) for k in range(names.size)]
    draws = [
        statistic(values[np.concatenate([members[k] for k in random.integers(0, names.size, names.size)])])
        for _ in range(_DRAWS)
    ]
    return Figure(statistic(values), target, float(np.std(draws)), len(values), higher_is_better, what)


def _median(values: Floats) -> float:
    return float(np.median(values))


def _mean(values: Floats) -> float:
    return float(np.mean(values))


def _errors(predicted: Floats, measured: Floats) -> Floats:
    """Relative errors of step time (the inverse of speed) or of memory."""
    return np.abs(predicted / measured - 1)


def _speed_figures(observations: Observations, by_model: Floats, by_source: Floats) -> Iterator[tuple[str, Figure]]:
    models, sources = observations.column("model"), observations.column("source_id")
    known = np.isfinite(observations.speed) & np.isfinite(by_model)
    error = _errors(observations.speed, by_model)  # speed inverts: measured over predicted is the ratio of times
    what = "step time, all supported rows, leave-one-model-out"
    yield "time_median", _figure(_median, error[known], models[known], 0.04, f"{what}: median absolute error")
    yield "time_mean", _figure(_mean, error[known], models[known], 0.07, f"{what}: mean absolute error")
    sound = known & ~observations.suspicious
    what = "the same without suspicious rows"
    yield "time_median_sound", _figure(_median, error[sound], models[sound], 0.04, f"{what}: median absolute error")
    yield "time_mean_sound", _figure(_mean, error[sound], models[sound], 0.07, f"{what}: mean absolute error")
    bridge = known & (sources == "megatron_bridge")
    what = "Megatron-Bridge rows, leave-one-model-out: median absolute error of step time"
    yield "bridge_median", _figure(_median, error[bridge], models[bridge], 0.06, what)
    other = _errors(observations.speed, by_source)
    what = "step time, all supported rows, leave-one-source-out: median absolute error"
    yield "source_out_median", _figure(_median, other[known], sources[known], None, what)


def _transfer_figures(observations: Observations, speed: Floats) -> Iterator[tuple[str, Figure]]:
    from scipy.stats import spearmanr

    models = observations.column("model")
    rows = select(observations, ["vtrain_multi"]) & np.isfinite(observations.speed) & np.isfinite(speed)
    what = "vTrain multi-node rows, fitted on its single-node rows"
    error = _errors(observations.speed, speed)[rows]
    yield "vtrain_mape", _figure(_mean, error, models[rows], 0.06, f"{what}: mean absolute error of step time")
    orders = []
    for name in np.unique(models[rows]):
        mine = rows & (models == name)
        orders.append(float(spearmanr(speed[mine], observations.speed[mine]).statistic))
    worst = np.array(orders)
    yield "vtrain_spearman", _figure(
        lambda values: float(values.min()), worst, np.arange(worst.size).astype(str), 0.85,
        f"{what}: Spearman, worst model", higher_is_better=True,
    )  # fmt: skip


def _order_figures(observations: Observations, speed: Floats) -> Iterator[tuple[str, Figure]]:
    """Order and regret within the sweeps of the playbook: model x GPU count, with and without suspicious rows."""
    from scipy.stats import kendalltau

    swept = select(observations, ["playbook"]) & np.isfinite(observations.speed) & np.isfinite(speed)
    for suffix, rows in (("", swept), ("_sound", swept & ~observations.suspicious)):
        cells: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row in np.flatnonzero(rows).tolist():
            cells[sweep_cell(observations.rows[row])].append(row)
        sweeps = [np.array(members) for members in cells.values() if len(members) >= _SWEEP]
        taus = np.array([kendalltau(speed[cell], observations.speed[cell]).statistic for cell in sweeps])
        picked = np.array([observations.speed[cell][speed[cell].argmax()] for cell in sweeps])
        regret = 1 - picked / np.array([observations.speed[cell].max() for cell in sweeps])
        names = np.arange(taus.size).astype(str)
        what = "nanotron sweeps, model held out" + (", without suspicious rows" if suffix else "")
        yield (
            f"sweep_tau{suffix}",
            _figure(_mean, taus, names, 0.85, f"{what}: mean Kendall tau", higher_is_better=True),
        )
        yield (
            f"sweep_regret{suffix}",
            _figure(_mean, regret, names, 0.03, f"{what}: mean speed lost by taking the predicted best"),
        )


def _lever_figures(
    observations: Observations, pairs: Sequence[LeverPair], speed: Floats, memory: Floats
) -> Iterator[tuple[str, Figure]]:
    at = {row["id"]: position for position, row in enumerate(observations.rows)}
    for kind, predicted in (("speed", speed), ("memory", memory)):
        chosen = [p for p in pairs if p.kind == kind and {p.before, p.after} <= at.keys()]
        before, after = np.array([(at[p.before], at[p.after]) for p in chosen]).T
        measured, effect = np.array([p.effect for p in chosen]), predicted[after] / predicted[before] - 1
        known = np.isfinite(effect)
        clear = known & (np.abs(measured) >= VISIBLE)
        levers = np.array([p.lever for p in chosen])
        right = (np.sign(effect) == np.sign(measured)).astype(np.float64)
        what = f"one-lever pairs, {kind}"
        yield (
            f"lever_{kind}_sign",
            _figure(_mean, right[clear], levers[clear], 0.95, f"{what}: sign right", higher_is_better=True),
        )
        off = np.abs(effect - measured)
        yield (
            f"lever_{kind}_size",
            _figure(_median, off[known], levers[known], None, f"{what}: median difference of the effect"),
        )
        close = (off[known] <= _CLOSE).astype(np.float64)
        yield (
            f"lever_{kind}_close",
            _figure(_mean, close, levers[known], 0.95, f"{what}: effect within 3 points", higher_is_better=True),
        )


def _memory_figures(observations: Observations, memory: Floats, demand: Floats) -> Iterator[tuple[str, Figure]]:
    models = observations.column("model")
    known = np.isfinite(observations.memory_bytes) & np.isfinite(memory)
    error = _errors(memory, observations.memory_bytes)
    yield "memory_median", _figure(_median, error[known], models[known], 0.04, "peak memory: median absolute error")
    outcomes = np.array([str(kind) for kind in observations.outcomes])
    judged = np.isfinite(demand) & np.isin(outcomes, (Outcome.RAN, Outcome.OOM))
    predicted, happened = demand > 1, outcomes == Outcome.OOM
    pairs = np.stack([predicted, happened], axis=1).astype(np.float64)

    def precision(rows: Floats) -> float:
        return float(rows[rows[:, 0] > 0, 1].mean()) if rows[:, 0].any() else 1.0

    def recall(rows: Floats) -> float:
        return float(rows[rows[:, 1] > 0, 0].mean()) if rows[:, 1].any() else 1.0

    what = "out of memory, rows that ran or are stated to have run out of it"
    for name, statistic in (("precision", precision), ("recall", recall)):
        yield (
            f"oom_{name}",
            _figure(statistic, pairs[judged], models[judged], 0.95, f"{what}: {name}", higher_is_better=True),
        )
    sweep = np.isfinite(demand) & (observations.column("source_id") == "playbook")
    sweep &= np.isin(outcomes, (Outcome.RAN, Outcome.FAILED))
    pairs = np.stack([predicted, outcomes == Outcome.FAILED], axis=1).astype(np.float64)
    what = "nanotron sweeps, runs that crashed or ran out of memory"
    for name, statistic in (("precision", precision), ("recall", recall)):
        yield (
            f"failed_{name}",
            _figure(statistic, pairs[sweep], models[sweep], None, f"{what}: {name}", higher_is_better=True),
        )


def _coverage(observations: Observations) -> Figure:
    """Share of rows with a known architecture that are priced; a row whose sizes are not published does not count."""
    asked = np.array(["no shape" not in observations.refused.get(k, "") for k in range(len(observations.rows))])
    priced = observations.priced[asked].astype(np.float64)
    what = "rows whose architecture is known: share priced"
    return _figure(_mean, priced, observations.column("source_id")[asked], 0.97, what, higher_is_better=True)


def _table(
    observations: Observations, groups: NDArray[np.str_], speed: Floats, memory: Floats
) -> list[dict[str, str | float | int]]:
    """Errors by group, most rows first: of step time with the model held out, and of memory."""
    time, held = np.log(observations.speed / speed), np.log(memory / observations.memory_bytes)
    rows: list[dict[str, str | float | int]] = []
    for name in np.unique(groups):
        t, m = time[(groups == name) & np.isfinite(time)], held[(groups == name) & np.isfinite(held)]
        entry: dict[str, str | float | int] = {"group": str(name), "time_rows": t.size, "memory_rows": m.size}
        for kind, values in (("time", t), ("memory", m)):
            if values.size:
                entry |= {
                    f"{kind}_bias": float(np.expm1(np.median(values))),
                    f"{kind}_median": float(np.median(np.abs(np.expm1(values)))),
                    f"{kind}_mean": float(np.mean(np.abs(np.expm1(values)))),
                }
        rows.append(entry)
    return sorted(
        (row for row in rows if row["time_rows"] or row["memory_rows"]), key=lambda row: -int(row["time_rows"])
    )
