"""`attune doctor`."""

from __future__ import annotations

import typer

from attune_lab.cli.output import Json, emit, table


def doctor(as_json: Json = False) -> None:
    """Say what works on this machine: versions, torch, torchrun, Slurm, database, API key.

    Exit code 1 when something the simulated path needs is missing.

    Example: attune doctor
    """
    from attune_lab.doctor import examine

    findings = examine()
    healthy = all(finding.works or not finding.needed for finding in findings)
    data = {"healthy": healthy, "checks": [finding.to_json() for finding in findings]}
    drawn = table("What works on this machine", "", "check", "found", "needed for")
    for finding in findings:
        mark = "[green]yes[/green]" if finding.works else ("[red]NO[/red]" if finding.needed else "no")
        drawn.add_row(mark, finding.name, finding.found, finding.purpose)
    emit(data, as_json=as_json, render=lambda console: console.print(drawn))
    if not healthy:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(doctor)
