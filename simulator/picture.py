"""Draws a timeline: stages as rows, time to the right."""

from __future__ import annotations

import io
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from simulator.events import Recorded
from simulator.job import Schedule
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Span = tuple[float, float]

_WIDTH, _DPI = 16.0, 110  # inches, dots per inch
_LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN = 0.75, 0.15, 0.95, 0.95, 0.75  # inches around and between the panels
_GAP = 0.45  # inches between two panels side by side
_LABEL_POINTS = 6.5
_DIGIT = 0.64 * _LABEL_POINTS / 72 * _DPI  # dots that a digit takes
_SEND_HEIGHT = 0.13  # of a row, below its passes
_LIGHTER = 0.45  # towards white, for the last chunk of a stage

_KINDS = {
    "F": ("#2f6db3", "forward"),
    "B": ("#35894c", "backward"),
    "I": ("#2a9d8f", "backward (inputs)"),
    "W": ("#b7d67a", "backward (weights)"),
    "send": ("#e8912d", "transfer to another stage"),
    "parameters": ("#e07a5f", "parameter gathering, not hidden"),
    "gradients": ("#b23a48", "gradient reduction, not hidden"),
    "optimizer": ("#7b4fa3", "optimizer"),
    "host and contention": ("#8a8f98", "host, slow-down by hidden communication"),
}
"""Colour and words of everything that is recorded."""

_SCHEDULES = {
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.GPIPE: "all forward, all backward",
    Schedule.ZB_H1: "ZB-H1",
    Schedule.ZB_V: "ZB-V",
    Schedule.DUALPIPE: "DualPipe",
    Schedule.DUALPIPE_V: "DualPipeV",
}


def png(line: Timeline, title: str) -> bytes:
    """The picture: the whole step, and where its passes are too narrow to read, the first and the last ones below.

    Args:
        line: what to draw.
        title: first line above the picture, taken as it is.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    row = min(0.45, max(0.17, 4.5 / line.stages)) * line.stages  # inches of one row of panels
    rows = [(_whole(line), ("", ""))]
    if zoomed := _zoom(line):
        rows.append((zoomed, ("first passes", "last passes")))
    height = _TOP + _BOTTOM + len(rows) * row + (len(rows) - 1) * _BETWEEN
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    for index, (spans, names) in enumerate(rows):
        bottom = height - _TOP - (index + 1) * row - index * _BETWEEN
        _draw_row(figure, line, spans, names, bottom / height, row / height)
    if line.cut:
        words = f"{line.left_out} micro-batches, {line.cut[1] - line.cut[0]:.1f} s, not drawn"
        gap = (figure.axes[0].get_position().x1 + figure.axes[1].get_position().x0) / 2
        middle = 1 - (_TOP + row / 2) / height
        figure.text(gap, middle, words, rotation=90, fontsize=8, ha="center", va="center", color="#444444")
    _describe(figure, line, title, height)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a recipe's name: drawn as boxes
        figure.savefig(picture, format="png")
    return picture.getvalue()


def _whole(line: Timeline) -> list[_Span]:
    """The step, in two pieces where its steady state is left out."""
    if line.cut is None:
        return [(0.0, line.seconds)]
    return [(0.0, max(r.end for r in line.recorded if r.start < line.cut[0])), (line.cut[1], line.seconds)]


def _zoom(line: Timeline) -> list[_Span]:
    """The first and the last passes, readable; empty where the whole step is."""
    passes = [r for r in line.recorded if r.microbatch >= 0 and r.kind != "send"]
    shown = sum(end - start for start, end in _whole(line))
    short = float(np.quantile([r.end - r.start for r in passes], 0.25))
    span = (_WIDTH - _LEFT - _RIGHT - _GAP) / 2 * _DPI * short / _label_width(line.microbatches - 1)
    if 2 * span > shown:
        return []
    first, last = min(r.start for r in passes), max(r.end for r in passes)
    after = min(line.seconds, last + span / 8)
    return [(max(first - span / 20, 0.0), first + span), (after - span, after)]


def _draw_row(
    figure: Figure, line: Timeline, spans: list[_Span], names: tuple[str, str], bottom: float, height: float
) -> None:
    """Panels side by side on one scale."""
    lengths = np.array([end - start for start, end in spans])
    inches = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(spans) - 1)) * lengths / lengths.sum()
    left = _LEFT
    for index, (span, width) in enumerate(zip(spans, inches, strict=True)):
        axes = figure.add_axes((left / _WIDTH, bottom, width / _WIDTH, height))
        _draw(axes, line, span, dots_per_second=width * _DPI / (span[1] - span[0]))
        axes.set_title(names[index], fontsize=8, loc="left", pad=3, color="#444444")
        axes.tick_params(labelleft=index == 0)
        left += width + _GAP


def _draw(axes: Axes, line: Timeline, span: _Span, dots_per_second: float) -> None:
    """What happens in this span of time."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    corners: dict[tuple[str, int], list[list[tuple[float, float]]]] = defaultdict(list)
    chunks = 1 + max(r.chunk for r in line.recorded)
    shown = [r for r in line.recorded if r.end > span[0] and r.start < span[1]]
    for one in shown:
        low, high = _rows_of(one)
        corners[one.kind, one.chunk].append([(one.start, low), (one.end, low), (one.end, high), (one.start, high)])
        if one.microbatch >= 0 and one.kind != "send":
            _label(axes, one, span, dots_per_second, light=one.kind == "W" or 2 * one.chunk >= chunks)
    for (kind, chunk), polygons in corners.items():
        lighter = _LIGHTER * chunk / (chunks - 1) if chunk > 0 and kind != "send" else 0.0
        colour = 1 - (1 - np.array(to_rgb(_KINDS[kind][0]))) * (1 - lighter)
        edges = [(one[1][0] - one[0][0]) * dots_per_second for one in polygons]
        border = 0.5 if np.median(edges) > 4 else 0.0
        axes.add_collection(PolyCollection(polygons, facecolors=[colour], edgecolors="white", linewidths=border))
    axes.set_xlim(span)
    axes.set_ylim(line.stages - 0.5, -0.5)
    axes.set_yticks(range(line.stages), [f"stage {stage}" for stage in range(line.stages)], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("seconds", fontsize=8, labelpad=2)
    axes.set_facecolor("#f4f4f2")  # what is left free is idle
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _rows_of(one: Recorded) -> _Span:
    """Upper and lower edge: transfers lie under the passes of the stage they leave."""
    border = one.stage + 0.46 - _SEND_HEIGHT
    return (border, one.stage + 0.46) if one.kind == "send" else (one.stage - 0.46, border)


def _label(axes: Axes, one: Recorded, span: _Span, dots_per_second: float, *, light: bool) -> None:
    """The number of the micro-batch, if there is room; ``light``: the colour under it."""
    start, end = max(one.start, span[0]), min(one.end, span[1])
    if (end - start) * dots_per_second >= _label_width(one.microbatch):
        axes.text(
            (start + end) / 2, one.stage - _SEND_HEIGHT / 2, str(one.microbatch), fontsize=_LABEL_POINTS,
            ha="center", va="center", color="black" if light else "white", zorder=3, clip_on=True,
        )  # fmt: skip


def _label_width(number: int) -> float:
    """Dots that a pass needs to show this number."""
    return _DIGIT * len(str(number)) + 4


def _describe(figure: Figure, line: Timeline, title: str, height: float) -> None:
    """Title, figures and legend."""
    from matplotlib.patches import Patch

    chunks = 1 + max(r.chunk for r in line.recorded)
    schedule = _SCHEDULES[line.schedule]
    if line.schedule == Schedule.ONE_F_ONE_B and chunks > 1:
        schedule = f"interleaved {schedule}, {chunks} chunks a stage (later ones lighter)"
    about = [
        "simulated", f"step {line.predicted_seconds:.3f} s", schedule,
        f"{line.microbatches} micro-batches", f"bubble {100 * line.bubble:.1f} %",
    ]  # fmt: skip
    figure.text(_LEFT / _WIDTH, 1 - 0.22 / height, title, fontsize=12, weight="bold", va="top", parse_math=False)
    figure.text(_LEFT / _WIDTH, 1 - 0.55 / height, "   ·   ".join(about), fontsize=9, va="top", color="#444444")
    kinds = {r.kind for r in line.recorded if r.end > r.start}
    patches = [Patch(color=colour, label=words) for kind, (colour, words) in _KINDS.items() if kind in kinds]
    patches.append(Patch(facecolor="#f4f4f2", edgecolor="#bbbbbb", label="idle"))
    columns = len(patches) if len(patches) <= 8 else 5
    figure.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(_LEFT / _WIDTH, 0.0),
        ncols=columns,
        fontsize=8,
        frameon=False,
    )
