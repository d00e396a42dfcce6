"""A campaign while it runs: one line per run, and below it the GPU-hours spent, what is left and the best so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from attune_lab.campaign import Observer
from attune_lab.campaign.budget import to_gpu_hours
from attune_lab.wording import change_in_words

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.campaign import CampaignResult
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
        self._runs = self._started = 0
        self._phase = "starting"
        self._baselines: list[float] = []
        self._best = 0.0

    def phase(self, name: str) -> None:
        self._phase = _PHASES.get(name, name)
        self._bar.update(self._task, description=self._phase)

    def run_started(self, label: str, purpose: str, proposal: Proposal, budget: Budget) -> None:
        self._started += 1
        self._bar.update(self._task, description=f"running {short_label(label)}")
        self._show_bill(budget)

    def run_finished(self, row: RunRow, budget: Budget) -> None:
        report = row.report
        if report is None:
            return
        self._runs += 1
        rate = report.tokens_per_s_per_gpu or 0.0
        if row.purpose == "baseline" and rate:
            self._baselines.append(rate)
        if row.purpose != "twin":
            self._best = max(self._best, rate)
        colour = _COLOURS.get(report.status, "magenta")
        speed = f"{rate:9,.0f} {self._gain(rate):8s}" if rate else " " * 18
        if self._runs == 1:
            self._console.print("[dim]run          outcome  tok/s/GPU    gain   what is tried[/dim]", no_wrap=True)
        self._bar.update(self._task, description=self._phase)
        self._console.print(
            f"{short_label(row.label):12s} [{colour}]{report.status:8s}[/{colour}] {speed}  {escape(_what(row))}",
            overflow="ellipsis",
            no_wrap=True,
        )
        self._show_bill(budget)

    def finished(self, result: CampaignResult) -> None:
        if not self._started:
            self._console.print(
                "This campaign was finished before; another --seed, --budget or --out begins a new one."
            )

    def _gain(self, rate: float) -> str:
        """Against the mean of the baseline runs so far, as in the summary."""
        return f"{100 * (rate / fmean(self._baselines) - 1):+6.1f} %" if self._baselines else ""

    def _show_bill(self, budget: Budget) -> None:
        total, spent = to_gpu_hours(budget.total_us), to_gpu_hours(budget.spent_us)
        gain = f"best {self._gain(self._best).strip()}" if self._baselines else ""
        self._bar.update(
            self._task,
            total=total or 1,
            completed=spent,
            bill=f"{self._runs} runs, {spent:,.0f} GPU-h spent, {max(total - spent, 0):,.0f} left",
            best=gain,
        )


def short_label(label: str) -> str:
    """The label of a run as a person reads it: a search run by its number alone."""
    return label.removesuffix("-search")


def _what(row: RunRow) -> str:
    return (change_in_words(row.proposal["changed"]) or row.proposal["reason"])[:500]  # whatever a tuner wrote
