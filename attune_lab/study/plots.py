"""The pictures of a study: progress against GPU-hours, gains, regret, and what the budget was lost to."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from attune_lab.study.figures import best_so_far, by_world, judged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGHLIGHTED = 8
"""So many tuners have a colour of their own in a plot of curves; more cannot be told apart."""

_FAILURES = ("oom", "timeout", "crash", "hang", "diverged", "node_failure", "preempted")
_COLOURS = ("#2f6db3", "#e07a5f", "#35894c", "#7b4fa3", "#e8912d", "#2a9d8f", "#b23a48", "#5c6370")
_REST = "#c3c8d0"


def pictures(campaigns: pd.DataFrame, runs: pd.DataFrame, order: Sequence[str]) -> dict[str, str]:
    """The pictures of a study as SVG, by name; ``order`` has the tuners, best first. Without optima there is no regret.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawings: dict[str, Callable[[], Figure]] = {
        "best-so-far": lambda: progress(campaigns, runs, order),
        "gains": lambda: boxes(by_world(campaigns, "gain_pct"), order, "gain over the recipe, %"),
        "failures": lambda: failures(campaigns, runs, order),
    }
    regret = by_world(campaigns, "regret_pct")
    if regret.notna().any(axis=None):
        drawings["regret"] = lambda: boxes(regret, order, "regret: gain short of the best recipe of the world, points")
    return {name: svg(draw()) for name, draw in drawings.items()}


def progress(campaigns: pd.DataFrame, runs: pd.DataFrame, order: Sequence[str]) -> Figure:
    """Median best gain so far against the share of the budget spent, with quartiles of the leading tuners."""
    shares = np.linspace(0, 1, 101)
    curves = best_so_far(runs, campaigns, shares)
    figure, axes = _sheet(9.0, 5.0)
    named = [tuner for tuner in order if tuner in curves]
    for place, tuner in reversed(list(enumerate(named))):
        low, middle, high = np.percentile(curves[tuner], [25, 50, 75], axis=0)
        if place < HIGHLIGHTED:
            colour = _COLOURS[place % len(_COLOURS)]
            axes.fill_between(100 * shares, low, high, step="post", color=colour, alpha=0.10, linewidth=0)
            axes.step(100 * shares, middle, where="post", color=colour, linewidth=1.8, label=_plain(tuner), zorder=3)
        else:
            axes.step(100 * shares, middle, where="post", color=_REST, linewidth=0.9)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_xlabel("GPU-hours spent, % of the budget (baseline runs included)")
    axes.set_ylabel("best gain measured so far, %")
    axes.set_xlim(0, 100)
    return figure


def boxes(table: pd.DataFrame, order: Sequence[str], label: str) -> Figure:
    """One horizontal box per tuner, best at the top: quartiles, whiskers to 5 and 95 %, the mean as a dot."""
    named = [tuner for tuner in order if tuner in table.columns]
    figure, axes = _sheet(8.0, 1.2 + 0.26 * len(named))
    values = [table[tuner].dropna().to_numpy() for tuner in named]
    axes.boxplot(
        values,
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        showmeans=True,
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#dfe8f3", "edgecolor": "#5b7ea6"},
        medianprops={"color": "#1f4e86", "linewidth": 1.6},
        meanprops={"marker": "o", "markersize": 4, "markerfacecolor": "#e07a5f", "markeredgecolor": "none"},
    )
    _rows(axes, named)
    axes.axvline(0, color="#888", linewidth=0.8)
    axes.set_xlabel(label)
    return figure


def failures(campaigns: pd.DataFrame, runs: pd.DataFrame, order: Sequence[str]) -> Figure:
    """Share of the budget that went into runs that ended badly, by how they ended, mean over campaigns."""
    keys = ["scenario", "tuner", "world"]
    rows = judged(campaigns).set_index(keys)
    named = [tuner for tuner in order if tuner in set(rows.index.get_level_values("tuner"))]
    search = runs[(runs["purpose"] == "search") & ~runs["repeated"]].set_index(keys)
    budgets = rows["gpu_hours_budget"].rename("budget")
    lost = search.join(budgets, how="inner")
    shares = (100 * lost["gpu_hours"] / lost["budget"]).groupby([lost.index.get_level_values("tuner"), lost["status"]])
    counts = rows.groupby("tuner").size()
    figure, axes = _sheet(8.0, 1.2 + 0.26 * len(named))
    left = np.zeros(len(named))
    totals = shares.sum()
    for place, status in enumerate(_FAILURES):
        widths = np.array([float(totals.get((tuner, status), 0.0)) / counts[tuner] for tuner in named])
        if widths.any():
            axes.barh(np.arange(1, len(named) + 1), widths, left=left, height=0.6, color=_COLOURS[place], label=status)
            left += widths
    _rows(axes, named)
    if left.any():
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.set_xlabel("lost to runs that ended badly, % of the whole budget")
    return figure


def svg(figure: Figure) -> str:
    """The figure as an SVG element that an HTML page can hold; the same figure gives the same text."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "attune", "svg.fonttype": "none", "font.family": ["sans-serif"]}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _sheet(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#eee", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top."""
    axes.set_yticks(np.arange(1, len(names) + 1), [*map(_plain, names)], fontsize=8)
    axes.invert_yaxis()


def _plain(name: str) -> str:
    """A name as matplotlib shows it: text, never a formula, and never left out as hidden ones are."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
