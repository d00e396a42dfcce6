"""`attune logs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, console, emit, indented, table
from attune_lab.contracts import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.logs import LoggedStep, TrainingLog

_PAUSE_S = 0.5


def logs(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Training logs, also .gz.", show_default=False)
    ],
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the job, if the log does not say.")] = None,
    tokens_per_step: Annotated[
        int | None, typer.Option(min=1, help="Global batch size times sequence length, if the log does not say.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="First steps that are not timed.")] = 3,
    steps: Annotated[bool, typer.Option("--steps", help="Print the steps too.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow one growing log until it ends or Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read training logs: which stack, how fast, how much memory, and why the run ended.

    Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed, NeMo, Hugging Face Trainer and nanotron are told apart by
    their lines. Figures are the log's own claims.

    Example: attune logs train.log --gpus 64 --tokens-per-step 4194304
    """
    from attune_lab.logs import read_log, summarise

    if follow and len(files) > 1:
        raise UserError("--follow reads one log; name one file")
    read = {path: _followed(path, show=not as_json) if follow else read_log(path) for path in files}
    for path, log in read.items():
        if log.stack == "unknown" and log.failure is None:
            raise UserError(f"{path} has no line of a known stack and no failure; give the log of a training run")
    found = [
        _data(path, log, asdict(summarise(log, warmup=warmup, gpus=gpus, tokens_per_step=tokens_per_step)))
        for path, log in read.items()
    ]
    emit(
        {name: value for name, value in found[0].items() if name != "file"} if len(files) == 1 else {"logs": found},
        as_json=as_json,
        render=lambda screen: _render(screen, found, steps=steps),
    )


def _followed(path: Path, *, show: bool) -> TrainingLog:
    """The log once it has ended, or at Ctrl-C; its steps on stderr as they come."""
    from attune_lab.logs import LogReading
    from attune_lab.logs.following import follow

    screen, reading = console(stderr=True), LogReading()

    def seen(step: LoggedStep) -> None:
        if show:
            cells = zip(_STEP_COLUMNS, _cells(asdict(step)), strict=True)
            screen.print("  ".join(f"{name} {cell}" for name, cell in cells if cell != "-"), markup=False)

    with suppress(KeyboardInterrupt):  # the way to stop watching, no failure
        follow(path, reading, seen, lambda: time.sleep(_PAUSE_S))
    return reading.result()


def _data(path: Path, log: TrainingLog, summary: Mapping[str, Any]) -> dict[str, Any]:
    said = asdict(log)
    return {
        "file": str(path),
        "stack": said["stack"],
        "steps": said["steps"],
        "summary": summary,
        "failure": said["failure"],
        "memory_bytes": said["memory_bytes"],
        "finished": said["finished"],
        "restarts": said["restarts"],
        "remarks": said["remarks"],
    }


def _render(screen: Console, found: list[dict[str, Any]], *, steps: bool) -> None:
    from rich.markup import escape

    for index, data in enumerate(found):
        if index:
            screen.print()
        drawn = table(escape(f"{data['file']}: {data['stack']}"), "", "as the log says")
        for name, text in _figures(data["summary"], data["failure"], finished=data["finished"]):
            drawn.add_row(name, text)
        screen.print(drawn)
        if data["failure"]:
            from attune_lab.logs import KINDS

            screen.print(f"ended: {KINDS[data['failure']['kind']]}", markup=False)
            indented(screen, f"line {data['failure']['line']}: {data['failure']['evidence']}")
        disagreement = data["summary"]["disagreement"]
        for remark in [*data["remarks"], *([disagreement] if disagreement else [])]:
            screen.print(f"note: {remark}", markup=False)
        if steps:
            _render_steps(screen, data["steps"])


def _figures(said: Mapping[str, Any], failure: object, *, finished: bool) -> list[tuple[str, str]]:
    """Rows for a person; what the log does not say is left out."""
    rows = [("end", "failed" if failure else "finished" if finished else "not said")]
    if said["first_step"] is not None:
        rows.append(("steps", f"{said['first_step']} … {said['last_step']} ({said['steps']:,} lines)"))
    if said["step_time_s"] is not None:
        low, high = said["step_time_quartiles_s"] or (said["step_time_s"],) * 2
        rows.append(("step time", f"{said['step_time_s']:.4g} s (half of them {low:.4g} … {high:.4g} s)"))
    if said["tokens_per_s_per_gpu"] is not None:
        source = "" if said["tokens_from"] == "log" else ", from the step time"
        rows.append(("tokens/s/GPU", f"{said['tokens_per_s_per_gpu']:,.0f}{source}"))
    if said["tokens_per_s"] is not None:
        rows.append(("tokens/s", f"{said['tokens_per_s']:,.0f}"))
    if said["model_tflops_per_gpu"] is not None:
        rows.append(("TFLOP/s/GPU", f"{said['model_tflops_per_gpu']:,.1f} ({said['flops_convention']})"))
    if said["peak_memory_bytes"] is not None:
        rows.append(("memory", f"{said['peak_memory_bytes'] / 2**30:.1f} GiB reserved at the peak"))
    if said["loss_first"] is not None:
        rows.append(("loss", f"{said['loss_first']:.4f} → {said['loss_last']:.4f}"))
    if said["skipped_steps"] or said["nan_steps"]:
        rows.append(("lost steps", f"{said['skipped_steps'] or 0} skipped, {said['nan_steps'] or 0} NaN"))
    if said["straggler"]:
        rows.append(("straggler", said["straggler"]))
    return rows


_STEP_COLUMNS = ("step", "step time s", "loss", "grad norm", "tokens/s/GPU", "TFLOP/s/GPU")


def _render_steps(screen: Console, steps: list[dict[str, Any]]) -> None:
    drawn = table("Steps", *_STEP_COLUMNS, right=_STEP_COLUMNS)
    for step in steps:
        drawn.add_row(*_cells(step))
    screen.print(drawn)


def _cells(step: Mapping[str, Any]) -> list[str]:
    figures = ("step_time_s", "loss", "grad_norm", "tokens_per_s_per_gpu", "model_tflops_per_gpu")
    return [str(step["step"]), *("-" if step[name] is None else f"{step[name]:,.5g}" for name in figures)]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(logs)
