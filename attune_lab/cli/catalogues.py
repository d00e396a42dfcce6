"""What is known: `attune recipes`, `models`, `clusters`, `tuners`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, emit, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe's file.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List the public recipes that ship with attune, by model key; with a name, print that recipe's file.

    Example: attune recipes glm-4.5 > my_recipe.sh
    """
    from attune_lab.recipe.files import load, shipped

    if name is not None:
        file = load(name)
        emit(
            {"recipes": [{"name": file.name, "text": file.text}]},
            as_json=as_json,
            render=lambda console: console.out(file.text, end="", highlight=False),
        )
        return
    rows = [asdict(entry) for entry in shipped()]
    drawn = table("Public recipes (where in its source each stands: --json)", "name", "for", "source")
    for row in rows:
        repository, _, commit = row["source"].split()[0].partition("@")
        drawn.add_row(row["name"], f"{row['gpus']}x{row['accelerator']}", f"{repository}@{commit[:7]}")
    _show("recipes", rows, drawn, as_json)


def models(as_json: Json = False) -> None:
    """List the model shapes with their parameter counts.

    Example: attune models
    """
    from simulator.models import models as shapes
    from simulator.models import parameters

    rows = []
    drawn = table("Models", "model", "layers", "hidden", "experts", "total", "active", right=("total", "active"))
    for name, shape in shapes().items():
        count = parameters(shape)
        rows.append(
            {
                "name": name,
                "layers": shape.layers,
                "hidden": shape.hidden,
                "experts": shape.experts,
                "top_k": shape.top_k,
                "parameters_total": count.total,
                "parameters_active": count.active,
                "simulated": not shape.hybrid,
            }
        )
        experts = f"{shape.experts} top-{shape.top_k}" if shape.experts else "dense"
        drawn.add_row(
            name,
            str(shape.layers),
            str(shape.hidden),
            experts,
            f"{count.total / 1e9:.1f} B",
            f"{count.active / 1e9:.1f} B",
        )
    _show("models", rows, drawn, as_json)


def clusters(as_json: Json = False) -> None:
    """List the accelerators; a cluster is written as COUNTxACCELERATOR, e.g. 64xH200-SXM5-141GB.

    Example: attune clusters
    """
    from simulator.hardware import accelerators

    rows = []
    figures = ("BF16 TFLOP/s", "GiB", "HBM TB/s", "NVLink GB/s", "NIC GB/s", "$/GPU-h")
    drawn = table("Accelerators", "accelerator", *figures, right=figures)
    for name, gpu in accelerators().items():
        priced = gpu.usd_per_gpu_hour == gpu.usd_per_gpu_hour
        rows.append(
            {
                "name": name,
                "peak_bf16_tflops": gpu.peak_bf16_flops / 1e12,
                "memory_gib": gpu.memory_bytes / 2**30,
                "memory_bytes_per_s": gpu.memory_bytes_per_s,
                "link_bytes_per_s": gpu.link_bytes_per_s,
                "nic_bytes_per_s": gpu.nic_bytes_per_s,
                "fast_domain_gpus": gpu.domain_gpus,
                "usd_per_gpu_hour": gpu.usd_per_gpu_hour,
                "source": gpu.source,
            }
        )
        drawn.add_row(
            name,
            f"{gpu.peak_bf16_flops / 1e12:.0f}",
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.memory_bytes_per_s / 1e12:.1f}",
            f"{gpu.link_bytes_per_s / 1e9:.0f}",
            f"{gpu.nic_bytes_per_s / 1e9:.0f}",
            f"{gpu.usd_per_gpu_hour:.2f}" if priced else "-",
        )
    _show("clusters", rows, drawn, as_json)


def tuners(as_json: Json = False) -> None:
    """List the tuners installed on this machine, and the wrappers they can be put into.

    Example: attune tuners
    """
    from rich.markup import escape

    from attune_lab.contracts import UserError
    from attune_lab.workbench import tuner_entry_points, tuner_factory, wrapper_entry_points

    rows = []
    drawn = table("Tuners (the class of each: --json)", "tuner", "package", "what it does")
    for name, entry in sorted(tuner_entry_points().items()):
        try:
            summary = (tuner_factory(name).__doc__ or "").strip().split("\n")[0]
        except UserError as error:  # listed all the same: one broken package must not hide the others
            summary = str(error)
        rows.append({"name": name, "entry_point": entry.value, "summary": summary})
        drawn.add_row(escape(name), escape(entry.module.partition(".")[0]), escape(_first_sentence(summary)))
    wrappers = sorted(wrapper_entry_points())

    def render(console: Console) -> None:
        console.print(drawn)
        for wrapper in wrappers:
            console.print(f"NAME+{wrapper}: the tuner NAME in the wrapper {wrapper}", markup=False)

    emit({"tuners": rows, "wrappers": wrappers}, as_json=as_json, render=render)


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring's first line, without the marks of code."""
    return text.replace("`", "").partition(". ")[0].rstrip(".")


def _show(key: str, rows: list[dict[str, Any]], drawn: Table, as_json: bool) -> None:
    emit({key: rows}, as_json=as_json, render=lambda console: console.print(drawn))


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (recipes, models, clusters, tuners):
        app.command()(command)
