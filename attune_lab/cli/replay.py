"""`attune replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, emit, indented

if TYPE_CHECKING:
    from rich.console import Console


_SHOWN = 10
"""Differences that are printed; the first says most."""


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out folder of attune tune.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make a campaign again from what it left behind, and say whether it comes out the same, bit for bit.

    Runs are answered from the stored reports, language models from their transcript: neither a cluster nor a network is
    needed, and nothing in DIR is changed. Of a campaign that was cut off, what is there is made again.

    Exit code 0 when all is reproduced, 1 when anything differs.

    Example: attune replay campaigns/glm-4.5-64xH200-SXM5-141GB-40x-attune-seed0
    """
    from contextlib import redirect_stdout
    from sys import stderr

    from attune_lab.replay import replay_campaign

    with redirect_stdout(stderr):  # a tuner that prints must not spoil the one JSON object on stdout
        found = replay_campaign(folder)
    data = found.to_json()
    emit(data, as_json=as_json, render=lambda console: _render(console, data))
    if not found.reproduced:
        raise typer.Exit(1)


def _render(console: Console, data: dict[str, Any]) -> None:
    made = f"{data['runs']} runs" + ("" if data["state"] == "finished" else " of a campaign that was cut off")
    if data["reproduced"]:
        console.print(f"[bold green]reproduced[/bold green], bit for bit: {made}")
    else:
        console.print("[bold red]not reproduced[/bold red]")
    for difference in data["differences"][:_SHOWN]:
        indented(console, f"- {difference}")
    if (more := len(data["differences"]) - _SHOWN) > 0:
        indented(console, f"and {more} more, see --json")
    for package, (then, now) in data["versions"].items():
        indented(console, f"{package}: {then or 'none'} then, {now or 'none'} now")


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(replay)
