"""`attune enumerate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import CarryOver, ClusterName, Json, RecipeName, emit, table

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.contracts import Estimate
    from attune_lab.enumeration import BestRecipes, Found
    from attune_lab.workbench import Workbench


def enumerate_recipes(
    recipe: RecipeName,
    cluster: ClusterName,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Recipes to show.")] = 20,
    carry_over: CarryOver = None,
    as_json: Json = False,
) -> None:
    """The fastest layouts of a recipe that fit in memory, by the cost model: all legal parallel sizes, each with every
    level of recomputation, token dispatcher and communication overlap.

    Exit code 1 when no layout fits.

    Example: attune enumerate glm-4.5 --cluster 64xH200-SXM5-141GB --top 10
    """
    from attune_lab.enumeration import best_recipes
    from attune_lab.workbench import open_workbench

    bench = open_workbench(recipe, cluster, carry_over=carry_over)
    data = _data(bench, best_recipes(bench.baseline, bench.cluster, top))
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
    console.print(
        f"{data['recipe']} on {data['cluster']} (simulated, cost model): {data['layouts_priced']:,} layouts, "
        f"{data['layouts_that_fit']:,} fit; the recipe itself takes {data['baseline']['step_time_s']:.3f} s",
        markup=False,
    )
    rows = data["best"]
    keys = [key for key in rows[0] if key not in data["baseline"]] if rows else []
    figures = ("seconds", "GiB", "$/M tokens")
    shown = table("Fastest that fit", *keys, *figures, right=figures)
    for row in rows:
        cells = ["on" if row[key] is True else "" if row[key] is False else str(row[key]) for key in keys]
        seconds, peak, usd = row["step_time_s"], row["peak_memory_gib"], row["usd_per_million_tokens"]
        shown.add_row(*cells, f"{seconds:.3f}", f"{peak:.1f}", f"{usd:.3f}")
    console.print(shown)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("enumerate")(enumerate_recipes)
