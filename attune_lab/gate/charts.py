"""Line charts as plain figures for a template: points in pixels and ticks, no drawing library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attune_lab.gate.curve import Floats

WIDTH, HEIGHT = 640, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 34
"""Size of a chart and its margins, in pixels."""


@dataclass(frozen=True)
class Series:
    """One line: its name in the legend, the role that decides its colour, and its points, shape (T,) each."""

    label: str
    role: str
    x: Floats
    y: Floats


@dataclass(frozen=True)
class Tick:
    """A label on an axis and where it stands."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A chart ready to be drawn: lines as (label, role, SVG points), the band as an SVG polygon."""

    title: str
    lines: tuple[tuple[str, str, str], ...]
    band: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def draw(title: str, series: Sequence[Series], band: tuple[Floats, Floats, Floats] | None = None) -> Chart | None:
    """The chart of some lines; None where there is no finite point.

    Args:
        title: what the y axis shows; the x axis shows steps.
        series: drawn in this order, the last on top.
        band: x, lower and upper edge of the shaded region.
    """
    xs = np.concatenate([s.x for s in series] or [np.zeros(0)])
    ys = np.concatenate([s.y for s in series] + ([band[1], band[2]] if band is not None else []) or [np.zeros(0)])
    ys = ys[np.isfinite(ys)]
    if not xs.size or not ys.size:
        return None
    across = _Axis(float(xs.min()), float(xs.max()), LEFT, WIDTH - RIGHT)
    up = _Axis(float(ys.min()), float(ys.max()), HEIGHT - BOTTOM, TOP)
    lines = tuple((s.label, s.role, _points(s.x, s.y, across, up)) for s in series)
    return Chart(title, lines, _polygon(band, across, up), across.ticks(8), up.ticks(5))


@dataclass(frozen=True)
class _Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return round(self.first + (value - self.low) / span * (self.last - self.first), 1)

    def ticks(self, about: int) -> tuple[Tick, ...]:
        """Round values inside the range, about so many."""
        span = self.high - self.low
        if span <= 0:
            return (Tick(self.at(self.low), f"{self.low:.4g}"),)
        step = _round_step(span / about)
        decimals = max(0, -math.floor(math.log10(step)))
        values = [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return tuple(Tick(self.at(v), f"{v:.1e}" if decimals > 4 else f"{v:.{decimals}f}") for v in values)


def _round_step(raw: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below ``raw``."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))


def _points(x: Floats, y: Floats, across: _Axis, up: _Axis) -> str:
    return " ".join(f"{across.at(a)},{up.at(b)}" for a, b in zip(x, y, strict=True) if math.isfinite(b))


def _polygon(band: tuple[Floats, Floats, Floats] | None, across: _Axis, up: _Axis) -> str:
    if band is None:
        return ""
    x, low, high = band
    return " ".join([_points(x, high, across, up), _points(x[::-1], low[::-1], across, up)])
