"""A study while it runs: campaigns done, GPU-hours simulated, time left; without a terminal a line per campaign."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from attune_lab.study.run import StudyObserver

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.study.jobs import CampaignJob, OracleJob

_LONGEST = 160
"""Characters shown of the reason a campaign failed for."""


@contextmanager
def study_observer(console: Console, *, quiet: bool) -> Iterator[StudyObserver]:
    """An observer that shows a study on ``console`` while the context is open; ``quiet`` shows nothing.

    A terminal has one bar, and lines for campaigns that did not end by themselves; elsewhere every campaign has one.
    """
    if quiet:
        yield StudyObserver()
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[so_far]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        yield _Display(console, bar)


class _Display(StudyObserver):
    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("starting", total=1, so_far="")
        self._total = self._left = self._done = self._optima = 0
        self._gpu_hours = 0.0
        self._begun = time.monotonic()

    def begun(self, campaigns: int, done: int, optima: int) -> None:
        self._total, self._left, self._optima = campaigns, campaigns - done, optima
        self._begun = time.monotonic()
        if done:
            self._console.print(f"{done} of {campaigns} campaigns were done before")
        self._bar.update(self._task, total=campaigns, completed=done)
        self._show()

    def campaign_done(self, job: CampaignJob, record: dict[str, Any]) -> None:
        self._done += 1
        self._left -= 1
        self._gpu_hours += record["row"].get("gpu_hours_spent", 0.0)
        if record["status"] != "finished" or not self._console.is_terminal:
            self._console.print(self._line(job, record), markup=False, soft_wrap=True)
        self._bar.update(self._task, advance=1)
        self._show()

    def optimum_done(self, job: OracleJob, record: dict[str, Any]) -> None:
        self._optima -= 1
        if record["status"] != "finished":
            where = f"{job.recipe.name} on {job.cluster}, world {job.world}"
            self._console.print(f"no optimum for {where}: {record['message'][:_LONGEST]}", markup=False, soft_wrap=True)
        self._show()

    def _line(self, job: CampaignJob, record: dict[str, Any]) -> str:
        row, number = record["row"], f"{self._total - self._left}/{self._total}"
        gain = f"{row['gain_pct']:+6.1f} %  {row['gpu_hours_spent']:8,.0f} GPU-h" if row else ""
        why = "" if record["status"] == "finished" else f"  {record['status']}: {record['message'][:_LONGEST]}"
        return f"{number:>9s}  {job.scenario}  world {job.world:<3d}  {job.tuner.label:24s} {gain}{why}"

    def _show(self) -> None:
        parts = [f"{self._gpu_hours:,.0f} GPU-hours simulated"]
        if self._left and self._done:
            seconds = (time.monotonic() - self._begun) / self._done * self._left
            parts.append(f"about {_duration(seconds)} left")
        what = "campaigns" if self._left else f"{self._optima} optima to look up" if self._optima else "tables"
        self._bar.update(self._task, description=escape(what), so_far=", ".join(parts))


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
