"""A campaign while it runs: one line per run, and below it the GPU-hours spent, what is left and the best so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from attune_lab.campaign import Observer
from attune_lab.campaign.budget import to_gpu_hours

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.campaign.budget import Budget
    from attune_lab.campaign.store import RunRow
    from attune_lab.contracts import Proposal

_PHASES = {"baseline": "measuring the baseline", "search": "searching", "finalists": "gate and final measurement"}
_COLOURS = {"ok": "green", "oom": "red", "invalid": "yellow"}


@contextmanager
def progress_observer(console: Console, *, quiet: bool) -> Iterator[Observer]:
    """An observer that shows a campaign on ``console`` while the context is open; ``quiet`` shows nothing.

    On a terminal the bar moves in place; elsewhere (a pipe, a CI log) only the line of each run is printed.
    """
    if quiet:
        yield Observer()
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[bill]}"),
        TextColumn("[bold]{task.fields[best]}[/bold]"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        yield _Display(console, bar)


class _Display(Observer):
    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task: TaskID = bar.add_task("starting", total=1, bill="", best="")
        self._runs = 0
        self._baseline = self._best = 0.0

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=_PHASES.get(name, name))

    def run_started(self, label: str, purpose: str, proposal: Proposal, budget: Budget) -> None:
        self._bar.update(self._task, description=f"running {label}")
        self._show_bill(budget)

    def run_finished(self, row: RunRow, budget: Budget) -> None:
        report = row.report
        if report is None:
            return
        self._runs += 1
        rate = report.tokens_per_s_per_gpu or 0.0
        if row.purpose == "baseline" and rate and not self._baseline:
            self._baseline = rate
        if row.purpose != "twin":
            self._best = max(self._best, rate)
        colour = _COLOURS.get(report.status, "magenta")
        speed = f"{rate:9,.0f} tokens/s/GPU {100 * (rate / self._baseline - 1):+6.1f} %" if rate else " " * 32
        self._console.print(
            f"{row.label:14s} [{colour}]{report.status:12s}[/{colour}] {speed}  {escape(_what(row))}",
            overflow="ellipsis",
            no_wrap=True,
        )
        self._show_bill(budget)

    def _show_bill(self, budget: Budget) -> None:
        total, spent = to_gpu_hours(budget.total_us), to_gpu_hours(budget.spent_us)
        gain = f"best {100 * (self._best / self._baseline - 1):+.1f} %" if self._baseline else ""
        self._bar.update(
            self._task,
            total=total or 1,
            completed=spent,
            bill=f"{self._runs} runs, {spent:,.0f} GPU-h spent, {max(total - spent, 0):,.0f} left",
            best=gain,
        )


def _what(row: RunRow) -> str:
    changed = ", ".join(f"{key} {after}" for key, (_, after) in row.proposal["changed"].items())
    return (changed or row.proposal["reason"])[:200]  # one line of a terminal, whatever a tuner wrote
