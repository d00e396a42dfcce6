"""The accuracy report as JSON, Markdown and plots."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.observations import Observations
from simulator.calibration.validate import Figure, Validation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]


def as_json(validation: Validation, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The report as one JSON object; ``provenance`` says which data, which fit, which machine and day."""
    return {
        "provenance": dict(provenance),
        "figures": {key: asdict(figure) | {"met": figure.met} for key, figure in validation.figures.items()},
        "tables": {name: [dict(row) for row in rows] for name, rows in validation.tables.items()},
    }


def read_figures(content: str | bytes) -> dict[str, Figure]:
    """The figures of a report written by `as_json`.

    Raises:
        ValueError: the text is no such report.
    """
    try:
        held = json.loads(content)["figures"]
        figures = {
            key: Figure(**{name: value for name, value in figure.items() if name != "met"})
            for key, figure in held.items()
        }
        if not all(math.isfinite(figure.value) and math.isfinite(figure.noise) for figure in figures.values()):
            raise ValueError("a figure is no number")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has another form: {error}") from error
    return figures


def worse(now: Mapping[str, Figure], earlier: Mapping[str, Figure]) -> list[str]:
    """One sentence for each figure that is worse than in an earlier report by more than its noise, or gone."""
    missing = [f"{key} is missing; it was {figure.value:.4g}" for key, figure in earlier.items() if key not in now]
    fallen = [key for key in now if key in earlier and now[key].worse_than(earlier[key])]
    return missing + [
        f"{key} is {now[key].value:.4g}, was {earlier[key].value:.4g} (noise {earlier[key].noise:.2g}): {now[key].what}"
        for key in fallen
    ]


def as_markdown(validation: Validation, provenance: Mapping[str, Any]) -> str:
    """The report for reading: targets met and missed, then errors by source, accelerator and model."""
    return "\n".join(_lines(validation, provenance)) + "\n"


def _lines(validation: Validation, provenance: Mapping[str, Any]) -> Iterator[str]:
    yield "# How true the simulator is"
    yield ""
    yield "Written by `attune validate --out docs`; do not edit."
    yield "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in provenance.items()) + "."
    yield ""
    yield "Errors are of predictions by a fit that has not seen the row's model (or source). Simulated figures are"
    yield "compared with published ones; nothing here was measured by this project. Memory has no fit, and so"
    yield "nothing held out. Bias is the median of predicted over published step time, or memory, less 1."
    yield ""
    yield "| figure | value | target | met | noise | n |"
    yield "|---|---:|---:|---|---:|---:|"
    for figure in validation.figures.values():
        bound = "≥" if figure.higher_is_better else "≤"
        target = "" if figure.target is None else f"{bound} {figure.target:g}"
        met = {True: "yes", False: "**no**", None: ""}[figure.met]
        yield f"| {figure.what} | {figure.value:.3f} | {target} | {met} | {figure.noise:.3f} | {figure.count} |"
    for name, rows in validation.tables.items():
        yield ""
        yield f"## By {name}"
        yield ""
        yield "| | rows | time: bias % | median % | mean % | rows | memory: bias % | median % | mean % |"
        yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
        for row in rows:
            cells = [_cell(row, f"{kind}_{part}") for kind in ("time", "memory") for part in ("rows", *_PARTS)]
            name_cell = str(row["group"]).replace("|", "\\|")
            yield f"| {name_cell} | {' | '.join(cells)} |"


_PARTS = ("bias", "median", "mean")


def _cell(row: Mapping[str, str | float | int], key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    return str(value) if key.endswith("rows") else f"{100 * float(value):.1f}"


def plots(observations: Observations, validation: Validation) -> dict[str, bytes]:
    """Predicted against measured by source, speed and memory, and the spread of errors: PNG pictures by file name.

    Speed is that of fits which have not seen the row's model; memory has no fit, so that nothing is held out.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    pictures = {
        "accuracy-time": ("tokens/s/GPU", observations.speed, validation.held_out_speed, "model held out"),
        "accuracy-memory": ("peak GiB", observations.memory_bytes / 2**30, validation.memory_bytes / 2**30, "no fit"),
    }
    drawn = {}
    for name, (unit, measured, predicted, how) in pictures.items():
        canvas = Canvas(figsize=(13, 6), layout="constrained")
        canvas.suptitle(f"{unit}, simulated, against published runs ({how})")
        FigureCanvasAgg(canvas)
        left, right = canvas.subplots(1, 2, width_ratios=(1, 1.1))
        _scatter(left, observations.column("source_id"), measured, predicted, unit)
        _errors_by_source(right, observations.column("source_id"), measured, predicted, unit)
        picture = io.BytesIO()
        canvas.savefig(picture, format="png", dpi=110)
        drawn[f"{name}.png"] = picture.getvalue()
    return drawn


def _scatter(axes: Axes, sources: NDArray[np.str_], measured: Floats, predicted: Floats, unit: str) -> None:
    known = np.isfinite(measured) & np.isfinite(predicted)
    for number, source in enumerate(_by_rows(sources[known])):
        mine = known & (sources == source)
        marker, colour = "os^vD"[number // 10 % 5], f"C{number % 10}"
        axes.plot(measured[mine], predicted[mine], marker, color=colour, markersize=3, alpha=0.6, label=source)
    low, high = measured[known].min(), measured[known].max()
    axes.plot([low, high], [low, high], "k-", linewidth=0.8)
    for off in (0.9, 1.1):
        axes.plot([low, high], [off * low, off * high], "k:", linewidth=0.6)
    axes.set(xscale="log", yscale="log", xlabel=f"published {unit}", ylabel=f"predicted {unit} (simulated)")
    axes.set_title("predicted against published; dotted: 10 %")
    axes.legend(fontsize=6, ncol=2, markerscale=2)


def _errors_by_source(axes: Axes, sources: NDArray[np.str_], measured: Floats, predicted: Floats, unit: str) -> None:
    known = np.isfinite(measured) & np.isfinite(predicted)
    names = _by_rows(sources[known])[::-1]
    errors = [100 * (predicted / measured - 1)[known & (sources == name)] for name in names]
    axes.boxplot(errors, orientation="horizontal", whis=(5, 95), sym="", widths=0.6)
    axes.set_yticks(
        range(1, len(names) + 1), [f"{n} ({len(e)})" for n, e in zip(names, errors, strict=True)], fontsize=7
    )
    axes.axvline(0, color="k", linewidth=0.8)
    axes.set(xlim=(-60, 60), xlabel=f"predicted over published {unit}, less 1, % (drawn to ±60)")
    axes.set_title("box: half of the rows; whiskers: 5th to 95th percentile")


def _by_rows(groups: NDArray[np.str_]) -> list[str]:
    names, counts = np.unique(groups, return_counts=True)
    return [str(name) for name in names[np.argsort(-counts, kind="stable")]]
