"""What only shows over time: gaps, jitter, drift, a rank that turns slow, waiting for data, growing memory."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attune_lab.contracts import RunReport
from attune_lab.diagnosis.signs import Symptom
from attune_lab.logs import TrainingLog

FEWEST = 8
"""Steps below which nothing is said of a series."""

LONG, LONG_SIGMAS = 0.08, 6.0
"""A step is long when it is this much above the median, and this many robust standard deviations: calm clusters vary
by 0.05 to 0.5 % from step to step (NVIDIA-NeMo/Megatron-Bridge performance summary)."""

OFTEN = 3
"""Long steps that are a habit: one or two in a run are accidents."""

IN_PHASE = 0.8
"""Share of the long steps that keep a period: accidents fall between them."""

JITTER = 0.02
"""Relative robust standard deviation beyond which steps vary: four times what calm clusters show."""

MOVED, MOVED_SIGMAS = 0.03, 4.0
"""A level has moved when it did so by this much and by this many standard errors: more than between two runs of one
configuration (0.4 %) and less than a throttled node takes (5 % and more)."""

WAIT = 0.03
"""Share of a step spent waiting for data that is worth a word."""

BEHIND = 0.05
"""How far the slowest rank may be behind the fastest: ranks differ by a few per cent, throttled nodes by 5 and more."""

UNTIMED = 0.02
"""Share of the time between steps that the log's own timer may leave out: logging and the like."""

GROWTH = 0.03
"""Rise of the reserved peak, after a fifth of the steps, that is no warm-up."""

_HALF = 1.7  # standard deviation of a normal distribution over the robust one of its lower half
_DATA = re.compile(r"batch[-_ ]?generator|data[-_ ]?load|dataloader|data[-_ ]?time|batch_input", re.IGNORECASE)
_MEMORY = re.compile(r"mem(?:ory)?(?:[-_ ]|$)|max_?mem|reserved|memallocated", re.IGNORECASE)


def over_time(report: RunReport, settings: Mapping[str, Any], log: TrainingLog | None) -> Iterator[Symptom]:
    """Symptoms of the series of steps, from our own timing and, where there is one, from the log."""
    own = _usable(report.timed_step_times_s)
    steps = () if log is None else log.steps
    logged = _usable([s.step_time_s for s in steps if s.step_time_s is not None][report.warmup_steps :])
    yield from step_times(own or logged, settings)
    if own and logged:
        yield from _untimed(own, logged)
    if log is not None:
        yield from _slowest(log.round_trip_s)
        yield from _data_wait(log)
        yield from _growth(log)


def _usable(times: Sequence[float]) -> list[float]:
    return [seconds for seconds in times if math.isfinite(seconds) and seconds > 0]


def step_times(times: Sequence[float], settings: Mapping[str, Any]) -> Iterator[Symptom]:
    """Symptoms of step times after the warm-up: long steps first, then what the others do.

    Args:
        times: seconds, in order, positive.
        settings: the recipe's; the workers of the data loader name a period.
    """
    if len(times) < FEWEST:
        return
    gaps, calm = _split(times)
    yield from _gaps(times, gaps, statistics.median(calm), settings)
    if len(calm) < FEWEST:
        return
    trend = _trend(calm)
    yield from _moved(calm, trend, settings)
    spread = _sigma(trend.rest) / statistics.median(calm)
    if spread > JITTER:
        low = sorted(trend.rest)[len(trend.rest) // 10]
        saved = -low / statistics.fmean(calm)
        yield Symptom("step_time_jitter", f"steps vary by {spread:.1%}", min(max(saved, 0.0), 1.0))


def _sigma(values: Sequence[float]) -> float:
    """Robust standard deviation: 1.4826 median absolute deviations."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def _split(times: Sequence[float]) -> tuple[list[int], list[float]]:
    """Places of the long steps, and the times of all others; a level that has moved is no long step.

    Up to half of all steps may be long, so that the calm level is the lower quartile of a step's neighbours, and the
    spread that of the lower half. Long steps in a row are a level.
    """
    calm = [sorted(near)[len(near) // 4] for i in range(len(times)) if (near := times[max(i - 5, 0) : i + 6])]
    rest = [seconds - level for seconds, level in zip(times, calm, strict=True)]
    limit = LONG_SIGMAS * _HALF * _sigma(sorted(rest)[: (len(rest) + 1) // 2])
    late = {i for i, level in enumerate(calm) if rest[i] > max(LONG * level, limit)}
    gaps = [i for i in sorted(late) if not late & {i - 1, i + 1}]
    apart = set(gaps)
    return gaps, [seconds for i, seconds in enumerate(times) if i not in apart]


def _gaps(times: Sequence[float], gaps: Sequence[int], calm: float, settings: Mapping[str, Any]) -> Iterator[Symptom]:
    """A habit of long steps: whose habit, its period says."""
    if len(gaps) < OFTEN:
        return
    lost = sum(times[i] - calm for i in gaps)
    stake = _share(lost / sum(times))
    each = f"{lost / len(gaps):.2f} s longer"
    period = _period(gaps)
    if period is None:
        yield Symptom("step_time_jitter", f"{len(gaps)} of {len(times)} steps are {each}, at no interval", stake)
    elif period == settings.get("num_workers"):
        why = f"every {period} steps one is {each}, and the loader has {period} workers"
        yield Symptom("data_stall", why, stake)
    else:
        why = f"every {period} steps one is {each}: garbage collection or another regular chore"
        yield Symptom("step_time_jitter", why, stake)


def _period(places: Sequence[int]) -> int | None:
    """The interval that most neighbours keep, and with it most places; None where they keep none."""
    usual = statistics.mode(b - a for a, b in itertools.pairwise(places))
    phases = [place % usual for place in places]
    kept = phases.count(statistics.mode(phases))
    return usual if usual > 1 and kept >= IN_PHASE * len(places) else None


@dataclass(frozen=True)
class _Trend:
    """The better of two descriptions of a series: a level that moves once, or a straight line.

    Attributes:
        moved: level at the end over that at the start, less 1.
        at: step of the move; None for a line.
        errors: standard errors that the move is away from none.
        rest: what the description leaves, seconds.
    """

    moved: float
    at: int | None
    errors: float
    rest: list[float]


def _trend(times: Sequence[float]) -> _Trend:
    """The description that leaves less, in absolute seconds."""
    last = len(times) - 3
    step = min((_stepped(times, at) for at in range(3, last + 1, max(last // 60, 1))), key=_left)
    line = _sloped(times)
    return line if _left(line) < _left(step) else step


def _left(trend: _Trend) -> float:
    return sum(map(abs, trend.rest))


def _stepped(times: Sequence[float], at: int) -> _Trend:
    before, after = statistics.median(times[:at]), statistics.median(times[at:])
    rest = [t - before for t in times[:at]] + [t - after for t in times[at:]]
    error = 1.25 * _sigma(rest) * math.sqrt(1 / at + 1 / (len(times) - at))  # of medians
    return _Trend(after / before - 1, at, abs(after - before) / max(error, 1e-12 * before), rest)


def _sloped(times: Sequence[float]) -> _Trend:
    """A line of Theil and Sen, over at most some ten thousand pairs."""
    count = len(times)
    stride = max(count // 150, 1)
    places = range(0, count, stride)
    slope = statistics.median((times[j] - times[i]) / (j - i) for i in places for j in places if j > i)
    start = statistics.median(t - slope * i for i, t in enumerate(times))
    rest = [t - start - slope * i for i, t in enumerate(times)]
    error = _sigma(rest) * math.sqrt(12 / count)  # of the rise from end to end
    rise = slope * (count - 1)
    return _Trend(rise / start if start > 0 else 0.0, None, abs(rise) / max(error, 1e-12 * abs(start)), rest)


def _moved(times: Sequence[float], trend: _Trend, settings: Mapping[str, Any]) -> Iterator[Symptom]:
    """Steps that became slower: at once, as when a node throttles, or slowly."""
    if not (trend.moved > MOVED and trend.errors > MOVED_SIGMAS):
        return
    mean = statistics.fmean(times)
    if trend.at is not None:
        stake = 1 - statistics.median(times[: trend.at]) / mean
        yield Symptom("straggler", f"from one step to the next all became {trend.moved:.1%} slower", _share(stake))
        return
    stake = 1 - (times[0] - trend.rest[0]) / mean
    if _unbalanced(settings):
        why = f"steps became {trend.moved:.1%} slower while nothing balances the experts"
        yield Symptom("expert_imbalance", why, _share(stake))
    yield Symptom("step_time_drift", f"steps became {trend.moved:.1%} slower little by little", _share(stake))


def _share(stake: float) -> float:
    return min(max(stake, 0.0), 1.0)


def _unbalanced(settings: Mapping[str, Any]) -> bool:
    """Whether experts are spread over ranks and neither a loss nor a bias keeps them even."""
    if not settings.get("num_experts") or (settings.get("ep") or 1) <= 1 or settings.get("force_load_balancing"):
        return False
    has_loss = settings.get("lb_type") not in (None, "none") and bool(settings.get("aux_loss_coeff"))
    return not has_loss and not settings.get("expert_bias")


def _untimed(own: Sequence[float], logged: Sequence[float]) -> Iterator[Symptom]:
    """Time between steps that the log's timer leaves out: collections, checkpoints, evaluations."""
    ours, theirs = statistics.fmean(own), statistics.fmean(logged)
    left_out = 1 - theirs / ours
    if left_out > UNTIMED:
        why = f"a step takes {ours:.2f} s and the log's own timer sees {theirs:.2f} s of it"
        yield Symptom("step_time_jitter", why, left_out)


def _slowest(round_trip_s: Mapping[int, float]) -> Iterator[Symptom]:
    """The slowest rank against the fastest, by the stack's own straggler detector."""
    times = {rank: seconds for rank, seconds in round_trip_s.items() if math.isfinite(seconds) and seconds > 0}
    if len(times) < 2:
        return
    slow, fast = max(times, key=lambda rank: times[rank]), min(times, key=lambda rank: times[rank])
    behind = times[slow] / times[fast] - 1
    if behind > BEHIND:
        yield Symptom("straggler", f"rank {slow} takes {behind:.1%} longer than rank {fast}", 1 - 1 / (1 + behind))


def _data_wait(log: TrainingLog) -> Iterator[Symptom]:
    """A timer of the data loader that takes a visible part of the step."""
    shares = [share for step in log.steps if (share := _waited(step.other, step.step_time_s)) is not None]
    wait = statistics.median(shares) if shares else 0.0
    if wait > WAIT:
        yield Symptom("data_stall", f"{wait:.1%} of the step waits for data, by the log's timer", min(wait, 1.0))


def _waited(columns: Mapping[str, float], step_s: float | None) -> float | None:
    """Share of the step in a column of the data loader: per cent, milliseconds or seconds by its name and size."""
    name = next((name for name in columns if _DATA.search(name)), None)
    if name is None or not math.isfinite(columns[name]):
        return None
    if "%" in name:
        return columns[name] / 100
    if not step_s:
        return None
    seconds = columns[name] / (1000 if columns[name] > step_s or "ms" in name.lower() else 1)
    return seconds / step_s if 0 <= seconds <= step_s else None


def _growth(log: TrainingLog) -> Iterator[Symptom]:
    """A memory column that rises from step to step after the warm-up."""
    names = {name for step in log.steps for name in step.other if _MEMORY.search(name)}
    for name in sorted(names):
        values = _usable([step.other[name] for step in log.steps if name in step.other])
        values = values[len(values) // 5 :]
        if len(values) < FEWEST:
            continue
        quarter = len(values) // 4
        start, end = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        rises = sum(b > a for a, b in zip(values[:-quarter], values[quarter:], strict=True))
        if end > (1 + GROWTH) * start and rises > 0.7 * (len(values) - quarter):
            yield Symptom("memory_growth", f"{name} rose by {end / start - 1:.1%} over the run", 1 - start / end)
            return
