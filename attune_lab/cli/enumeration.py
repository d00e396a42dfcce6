"""`attune enumerate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.explain import errors_of, show_errors
from attune_lab.cli.output import CalibrationFile, CarryOver, ClusterName, Json, RecipeName, emit, indented, table

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.contracts import Estimate
    from attune_lab.enumeration import BestRecipes, Found
    from attune_lab.workbench import Workbench


def enumerate_recipes(
    recipe: RecipeName,
    cluster: ClusterName,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Recipes to show.")] = 20,
    memory_limit: Annotated[
        float,
        typer.Option(
            min=0.1, max=1.0, metavar="SHARE", help="Share of the memory that a layout may be predicted to fill."
        ),
    ] = 1.0,
    carry_over: CarryOver = None,
    calibration: CalibrationFile = None,
    as_json: Json = False,
) -> None:
    """The fastest layouts of a recipe that fit in memory, by the cost model: all legal parallel sizes, each with every
    level of recomputation, token dispatcher and communication overlap.

    Exit code 1 when no layout fits.

    Example: attune enumerate glm-4.5 --cluster 64xH200-SXM5-141GB --top 10
    """
    from attune_lab.enumeration import best_recipes
    from attune_lab.predict import read_calibration
    from attune_lab.workbench import open_workbench

    posterior = read_calibration(calibration)
    bench = open_workbench(recipe, cluster, carry_over=carry_over, posterior=posterior)
    data = _data(bench, best_recipes(bench.baseline, bench.cluster, top, posterior, memory_limit=memory_limit))
    data |= errors_of(bench)
    data["recipe"] = recipe
    emit(data, as_json=as_json, render=lambda console: _render(console, data))
    if not data["best"]:
        raise typer.Exit(1)


def _data(bench: Workbench, found: BestRecipes) -> dict[str, Any]:
    (own,) = bench.cost_model.estimate([bench.baseline])
    price = bench.cluster.accelerator.usd_per_gpu_hour
    return {
        "cluster": bench.cluster.name,
        "provenance": "simulated",
        "layouts_priced": found.legal,
        "layouts_that_fit": found.fitting,
        "baseline": _figures(own, price),
        "best": [_row(one, price) for one in found.best],
        "front": [_row(one, price) for one in found.front],
    }


def _row(one: Found, usd_per_gpu_hour: float) -> dict[str, Any]:
    return {**one.values, **_figures(one.estimate, usd_per_gpu_hour)}


def _figures(estimate: Estimate, usd_per_gpu_hour: float) -> dict[str, float]:
    return {
        "step_time_s": estimate.step_time_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "peak_memory_gib": estimate.peak_memory_bytes / 2**30,
        "usd_per_million_tokens": 1e6 * usd_per_gpu_hour / 3600 / estimate.tokens_per_s_per_gpu,
    }


def _render(console: Console, data: dict[str, Any]) -> None:
    from rich.markup import escape

    own = data["baseline"]["step_time_s"]
    console.print(f"[bold]{escape(data['recipe'])}[/bold] on {data['cluster']}  (simulated, cost model)")
    indented(console, f"{data['layouts_priced']:,} layouts, {data['layouts_that_fit']:,} fit")
    indented(console, f"the recipe itself takes {own:.3f} s")
    show_errors(console, own, data)
    rows = data["best"]
    keys = [key for key in rows[0] if key not in data["baseline"]] if rows else []
    shared = [key for key in keys if len(rows) > 1 and all(row[key] == rows[0][key] for row in rows)]
    if len(rows) > 1:
        spread = rows[-1]["step_time_s"] / rows[0]["step_time_s"] - 1
        indented(console, f"the {len(rows)} below are within {100 * spread:.1f} % of one another")
    if shared:
        indented(console, f"all of them: {_words(rows[0], shared)}")
    figures = ("seconds", "GiB", "$/M tokens")
    shown = table("Fastest that fit", *figures, "layout", right=figures)
    for row in rows:
        seconds, peak, usd = row["step_time_s"], row["peak_memory_gib"], row["usd_per_million_tokens"]
        layout = _words(row, [key for key in keys if key not in shared])
        shown.add_row(f"{seconds:.3f}", f"{peak:.1f}", f"{usd:.3f}", layout)
    console.print(shown)


def _words(row: dict[str, Any], keys: list[str]) -> str:
    switch = {True: "on", False: "off"}
    return ", ".join(f"{key} {switch[row[key]] if isinstance(row[key], bool) else row[key]}" for key in keys)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("enumerate")(enumerate_recipes)
