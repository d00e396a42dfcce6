"""The end of a campaign as a person reads it: what was changed and why, what it gained, what was rejected."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from attune_lab.cli.output import several, table
from attune_lab.report.progress import short_label
from attune_lab.tuning import DECISIONS
from attune_lab.wording import change_in_words

if TYPE_CHECKING:
    from rich.console import Console

    Result = Mapping[str, Any]

_STATUS_COLOURS = {"ok": "green", "oom": "red", "invalid": "yellow", "timeout": "yellow"}
_LONGEST = 1000
"""Characters shown of a reason; a tuner may have written a book."""
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def render_summary(console: Console, result: Result) -> None:
    """Print the whole summary of a finished campaign.

    Args:
        console: where to print.
        result: the JSON object of `attune tune`.
    """
    _warnings(console, result)
    _known(console, result)
    _carried_over(console, result)
    _runs(console, result)
    _lost(console, result)
    _gate(console, result)
    _shipped(console, result)
    console.print(_headline(result))


def _headline(result: Result) -> Panel:
    before, after = result["baseline_tokens_per_s_per_gpu"], result["shipped_tokens_per_s_per_gpu"]
    band = f"noise band {result['noise_band_pct']:.2f} %"
    if result["kept_baseline"]:
        title, colour = "The recipe is kept as it was", "yellow"
        tried = sum(run["purpose"] == "search" for run in result["runs"])
        lost = "Nothing that was tried gained more than the noise and passed the gate" if tried else "Nothing was tried"
        first = f"{lost}: {_rate(before)} stays ({band})"
    else:
        title, colour = f"{result['gain_pct']:+.1f} % throughput, and it still trains the same model", "green"
        low, high = result["gain_interval_pct"]
        first = (
            f"{_rate(before)}  ->  [bold]{_rate(after)}[/bold]\n"
            f"measured again: {low:+.1f} to {high:+.1f} %, {band}; gate: {result['gate']['verdict']}"
        )
    origin = f"[dim]{result['provenance']} cluster, {escape(_tuner(result))}, seed {result['seed']}[/dim]"
    lines = (first, *_bill(result), f"the search ended: {escape(result['stop_reason'])}", origin)
    return Panel("\n".join(lines), title=title, title_align="left", border_style=colour, expand=False)


def _tuner(result: Result) -> str:
    """Who searched: the tuner, its policy where it has one, and the search rules that were switched off."""
    options = result["options"]
    usual = "catalog" if result["tuner"].partition("+")[0] == "attune" else None
    policy = options.get("policy", usual)
    words = [f"tuner {result['tuner']}", *([f"policy {policy}"] if policy else [])]
    if without := options.get("without"):
        words.append(f"rules off: {', '.join(map(str, without)) if isinstance(without, list | tuple) else without}")
    return ", ".join(words)


def _bill(result: Result) -> tuple[str, ...]:
    spent = f"spent {result['gpu_hours_spent']:,.1f} of {result['gpu_hours_budget']:,.1f} GPU-hours"
    if result["usd_spent"] is not None:
        spent += f", about ${result['usd_spent']:,.0f}"
    bill = (spent, *_asked(result["llm"]))
    if result["payback_hours"] is None:
        return bill
    return *bill, f"the tuning has paid for itself after [bold]{_hours(result['payback_hours'])}[/bold] of training"


def _asked(usage: Mapping[str, float]) -> tuple[str, ...]:
    """What language models used; tokens of scripted players are estimates, which cost nothing."""
    if not usage:
        return ()
    tokens = f"{usage.get('input_tokens', 0):,.0f} tokens in, {usage.get('output_tokens', 0):,.0f} out"
    dollars = f", ${usage['usd']:,.2f}" if usage.get("usd") else ""
    return (f"language models: {tokens}{dollars}",)


def _carried_over(console: Console, result: Result) -> None:
    if not result["carried_over"]:
        return
    console.print(
        f"[bold]Carried over[/bold] to {result['cluster']} from where {escape(result['recipe'])} was published"
    )
    drawn = _grid()
    for change in result["carried_over"]:
        drawn.add_row(
            escape(change_in_words({change["key"]: (change["before"], change["after"])})),
            f"[dim]{escape(change['why'])}[/dim]",
        )
    console.print(drawn)
    console.print()


def _runs(console: Console, result: Result) -> None:
    """One line for each run, cut where the terminal ends; why each was made is in the decisions and in the JSON."""
    baseline = result["baseline_tokens_per_s_per_gpu"]
    right = ("gain", "GPU-h")
    title = "Run by run, each change on top of the best recipe before it"
    drawn = table(title, "run", "outcome", *right, "what was tried", right=right)
    for column in drawn.columns[:-1]:
        column.no_wrap = True
    drawn.padding = (0, 1, 0, 0)
    for run in result["runs"]:
        rate = run["tokens_per_s_per_gpu"]
        colour = _STATUS_COLOURS.get(run["status"], "magenta")
        drawn.add_row(
            short_label(run["label"]),
            "[dim]repeat[/dim]" if run["repeated"] else f"[{colour}]{run['status']}[/{colour}]",
            f"{100 * (rate / baseline - 1):+.1f} %" if rate and baseline else "-",
            f"{run['gpu_hours']:,.1f}",
            Text(change_in_words(run["changed"]) or run["reason"][:_LONGEST], no_wrap=True, overflow="ellipsis"),
        )
    console.print(drawn)


def _warnings(console: Console, result: Result) -> None:
    for warning in result["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")


def _known(console: Console, result: Result) -> None:
    """Which evidence of past campaigns the tuner was given."""
    known = result["options"].get("lessons")
    if isinstance(known, Mapping):
        models = ", ".join(known["models"]) or "no model"
        of = (
            f"{several(known['campaigns'], 'campaign')} of {models} in {known['file']} (SHA-256 {known['sha256'][:12]})"
        )
        console.print(f"Known before: {escape(of)}")


def _gate(console: Console, result: Result) -> None:
    if result["kept_baseline"]:
        return
    console.print(f"[bold]Gate: {result['gate']['verdict']}[/bold]")
    for reason in result["gate"]["reasons"]:
        console.print(Padding(f"[dim]- {escape(reason)}[/dim]", (0, 0, 0, 2)))
    console.print()


def _lost(console: Console, result: Result) -> None:
    if not result["lost"]:
        return
    console.print("[bold]Rejected, and why[/bold]")
    drawn = _grid()
    for labels, reason in _grouped((short_label(entry["label"]), _kind(entry["reason"])) for entry in result["lost"]):
        drawn.add_row(labels, escape(reason))
    console.print(drawn)
    console.print()


def _grid() -> Table:
    """Two columns without lines: a short one, and one that wraps."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(min_width=12, max_width=34, overflow="fold")
    drawn.add_column(overflow="fold")
    return drawn


def _kind(reason: str) -> str:
    """``reason`` without what differs from run to run: the gain, and how much memory was asked for."""
    if reason.startswith("oom: "):
        return reason.partition(". ")[0]
    return re.sub(r" \([^()]*% here\)", "", reason)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """One row per reason, with the runs it holds for."""
    by_reason: dict[str, list[str]] = {}
    for label, reason in pairs:
        by_reason.setdefault(reason, []).append(label)
    return [(" ".join(labels), reason) for reason, labels in by_reason.items()]


def _shipped(console: Console, result: Result) -> None:
    if result["diff"]:
        console.print("[bold]The shipped recipe against the one that came in[/bold]")
        for line in result["diff"].splitlines():
            console.print(Text("  " + line, style=_DIFF_COLOURS.get(line[:1], "dim")))
        console.print()
    paths = {"shipped recipe": result["shipped_path"], "campaign folder": result["out"]}
    if result["decisions"]:
        paths["its decisions"] = Path(result["out"]) / DECISIONS
    for name, path in paths.items():
        console.print(f"{name:15s}  {shlex.quote(str(path))}", soft_wrap=True, markup=False)
    console.print()


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f} tokens/s/GPU"


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
