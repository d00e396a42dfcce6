"""`attune simulate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.explain import errors_of, explanation_of, losses_of, show_errors, show_explanation, show_losses
from attune_lab.cli.output import (
    CalibrationFile,
    CarryOver,
    ClusterName,
    Json,
    RecipeName,
    emit,
    indented,
    printable,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.contracts import Estimate
    from attune_lab.workbench import Workbench
    from simulator.timeline import Timeline as Drawn

Timeline = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the step: out.png writes a picture, and a trace beside it (out.json); out.json the trace alone, "
        "for chrome://tracing or ui.perfetto.dev. A folder gets timeline.png and timeline.json.",
    ),
]

Explain = Annotated[
    bool,
    typer.Option("--explain", help="Why: every number opened into its parts, with formulas, constants and sources."),
]
ExplainDepth = Annotated[
    int, typer.Option("--explain-depth", min=1, metavar="N", help="Levels of parts to print; --json has all of them.")
]


def simulate(
    recipe: RecipeName,
    cluster: ClusterName,
    carry_over: CarryOver = None,
    timeline: Timeline = None,
    explain: Explain = False,
    explain_depth: ExplainDepth = 2,
    calibration: CalibrationFile = None,
    as_json: Json = False,
) -> None:
    """Step time, throughput, memory per stage and breakdown of one recipe, by the cost model.

    Exit code 1 when the recipe is predicted to run out of memory.

    Example: attune simulate glm-4.5 --cluster 64xH200-SXM5-141GB --timeline step.png
    """
    from attune_lab.contracts import UserError
    from attune_lab.predict import read_calibration
    from attune_lab.workbench import open_workbench

    posterior = read_calibration(calibration)
    bench = open_workbench(recipe, cluster, carry_over=carry_over, posterior=posterior)
    [estimate] = bench.cost_model.estimate([bench.baseline])
    if estimate.problems:
        raise UserError(f"{recipe} cannot be simulated on {bench.cluster.name}: {'; '.join(estimate.problems)}")
    data = _data(estimate, bench.cluster.accelerator.name)
    data |= errors_of(bench)
    data["recipe"] = recipe
    data["cluster"] = bench.cluster.name
    data["warnings"] = list(bench.warnings)
    data["carried_over"] = [asdict(change) for change in bench.carried_over]
    if timeline is not None:
        data["timeline"] = _write_timeline(timeline, bench, recipe)
    explanation = explanation_of(bench) if explain else None
    if explanation is not None:
        data["explain"] = explanation.as_data()
        losses = losses_of(bench, estimate)
        data["symptoms"] = [asdict(symptom) for symptom in losses]

    def render(console: Console) -> None:
        _render(console, data)
        if explanation is not None:
            show_losses(console, losses)
            show_explanation(console, explanation, explain_depth)

    emit(data, as_json=as_json, render=render)
    if data["status"] != "ok":
        raise typer.Exit(1)


def _write_timeline(path: Path, bench: Workbench, recipe: str) -> dict[str, str | None]:
    """Write the step as a trace and, unless ``path`` ends in ``.json``, as a picture; returns where each is."""
    from attune_lab.contracts import UserError
    from attune_lab.recipe.effective import effective
    from attune_lab.writing import write_file
    from simulator.timeline import chrome_trace

    path = path / "timeline.png" if path.is_dir() else path
    if path.suffix not in (".png", ".json"):
        raise UserError(f"--timeline {path}: end the name in .png for a picture and a trace, or in .json for the trace")
    line = bench.cost_model.timeline(bench.baseline)
    values = effective(bench.baseline, bench.cluster)
    sizes = " ".join(f"{size} {values[size]}" for size in ("tp", "pp", "vpp", "cp", "ep") if (values[size] or 1) > 1)
    title = printable(f"{recipe} on {bench.cluster.name}   {sizes}")
    trace, picture = path.with_suffix(".json"), None
    if path.suffix == ".png":
        picture = path
        write_file(picture, _picture(line, title))
    write_file(trace, chrome_trace(line, title).encode())
    return {"png": str(picture) if picture else None, "trace": str(trace)}


def _picture(line: Drawn, title: str) -> bytes:
    from attune_lab.contracts import UserError
    from simulator.picture import png

    try:
        return png(line, title)
    except ImportError as error:
        raise UserError(
            "a picture needs matplotlib: pip install 'attune-lab[plots]', or name the trace alone with .json"
        ) from error


def _data(estimate: Estimate, accelerator: str) -> dict[str, Any]:
    return {
        "status": "ok" if estimate.fits else "oom",
        "provenance": "simulated",
        "step_time_s": estimate.step_time_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": estimate.model_tflops_per_gpu,
        "mfu": estimate.mfu,
        "mfu_peak_tflops": estimate.peak_flops / 1e12,
        "peak_memory_gib": estimate.peak_memory_bytes / 2**30,
        "memory_capacity_gib": estimate.memory_capacity_bytes / 2**30,
        "stage_memory_gib": [value / 2**30 for value in estimate.stage_memory_bytes],
        "memory_parts_gib": {part: value / 2**30 for part, value in estimate.memory_parts_bytes.items()},
        "breakdown": dict(estimate.breakdown_s),
        "diagnostics": dict(estimate.diagnostics),
        "accelerator": accelerator,
    }


def _render(console: Console, data: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.text import Text

    console.print(f"[bold]{escape(data['recipe'])}[/bold] on {data['cluster']}  (simulated, cost model)")
    for warning in data["warnings"]:
        indented(console, Text.assemble(("warning: ", "yellow"), warning))
    for change in data["carried_over"]:
        moved = f"{change['key']} {change['before']} -> {change['after']}: {change['why']}"
        indented(console, f"carried over: {moved}")
    indented(console, f"step {data['step_time_s']:.3f} s   {data['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU")
    indented(
        console,
        f"{data['model_tflops_per_gpu']:.0f} model TFLOP/s/GPU   "
        f"MFU {100 * data['mfu']:.1f} % of {data['mfu_peak_tflops']:.0f} TFLOP/s",
    )
    verdict = ("fits", "") if data["status"] == "ok" else ("runs out of memory", "red")
    peak = f"peak {data['peak_memory_gib']:.1f} of {data['memory_capacity_gib']:.1f} GiB: "
    stages = f"   per stage: {' '.join(f'{value:.0f}' for value in data['stage_memory_gib'])}"
    indented(console, Text.assemble(peak, verdict, stages))
    show_errors(console, data["step_time_s"], data)
    parts = table("Where the step goes", "part", "seconds", "share", "", right=("seconds", "share"))
    for part, seconds in data["breakdown"].items():
        share = seconds / data["step_time_s"]
        parts.add_row(part, f"{seconds:.3f}", f"{100 * share:.1f} %", "█" * round(40 * share))
    console.print(parts)
    memory = table("What the fullest stage holds", "part", "GiB", right=("GiB",))
    for part, value in data["memory_parts_gib"].items():
        memory.add_row(part, f"{value:.1f}")
    beside = data["peak_memory_gib"] - sum(data["memory_parts_gib"].values())
    memory.add_row("CUDA context, unused segments", f"{beside:.1f}")
    console.print(memory)
    for kind, path in data.get("timeline", {}).items():
        if path:
            indented(console, f"timeline, {kind}: {path}")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(simulate)
