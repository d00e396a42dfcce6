"""The end of a campaign as a person reads it: what was changed and why, what it gained, what was rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from attune_lab.cli.output import table

if TYPE_CHECKING:
    from rich.console import Console

    Result = Mapping[str, Any]

_STATUS_COLOURS = {"ok": "green", "oom": "red", "invalid": "yellow", "timeout": "yellow"}
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def render_summary(console: Console, result: Result) -> None:
    """Print the whole summary of a finished campaign.

    Args:
        console: where to print.
        result: the JSON object of `attune tune`.
    """
    _carried_over(console, result)
    _runs(console, result)
    _lost(console, result)
    console.print(_headline(result))
    _shipped(console, result)


def _headline(result: Result) -> Panel:
    before, after = result["baseline_tokens_per_s_per_gpu"], result["shipped_tokens_per_s_per_gpu"]
    lines = []
    if result["kept_baseline"]:
        title = "The recipe is kept as it was"
        lines.append(f"No change gained more than the noise and passed the gate; {_rate(before)} stays.")
    else:
        title = f"{result['gain_pct']:+.1f} % throughput, and it still trains the same model"
        lines.append(
            f"{_rate(before)}  ->  [bold]{_rate(after)}[/bold]   (noise band {result['noise_band_pct']:.2f} %)"
        )
        lines.append(
            f"gate: {result['gate']['verdict']}" + "".join(f"\n  - {escape(r)}" for r in result["gate"]["reasons"])
        )
    lines.append(_bill(result))
    lines.append(f"[dim]{result['provenance']} cluster, tuner {result['tuner']}, seed {result['seed']}; "
                 f"the search ended because {escape(result['stop_reason'])}[/dim]")  # fmt: skip
    colour = "yellow" if result["kept_baseline"] else "green"
    return Panel("\n".join(lines), title=title, title_align="left", border_style=colour, expand=False)


def _bill(result: Result) -> str:
    bill = f"spent {result['gpu_hours_spent']:,.1f} of {result['gpu_hours_budget']:,.1f} GPU-hours"
    if result.get("usd_spent") is not None:
        bill += f" (about ${result['usd_spent']:,.0f})"
    payback = result["payback_hours"]
    if payback is not None:
        bill += f"; paid for itself after [bold]{_hours(payback)}[/bold] of training"
    return bill


def _carried_over(console: Console, result: Result) -> None:
    if not result["carried_over"]:
        return
    console.print(f"[bold]{result['recipe']}[/bold] cannot start as published on {result['cluster']}; carried over:")
    for change in result["carried_over"]:
        console.print(
            f"  {change['key']}  {_value(change['before'])} -> {_value(change['after'])}   {escape(change['why'])}"
        )


def _runs(console: Console, result: Result) -> None:
    baseline = result["baseline_tokens_per_s_per_gpu"]
    drawn = table("Run by run", "run", "what was tried, and why", "outcome", "tokens/s/GPU", "gain", "GPU-h",
                  right=("tokens/s/GPU", "gain", "GPU-h"))  # fmt: skip
    for run in result["runs"]:
        rate = run["tokens_per_s_per_gpu"]
        colour = _STATUS_COLOURS.get(run["status"], "magenta")
        drawn.add_row(
            run["label"],
            "\n".join(filter(None, (_changes(run["changed"]), f"[dim]{escape(run.get('reason') or '')}[/dim]"))),
            f"[{colour}]{run['status']}[/{colour}]" + (" (repeat)" if run.get("repeated") else ""),
            f"{rate:,.0f}" if rate else "-",
            f"{100 * (rate / baseline - 1):+.1f} %" if rate and baseline else "-",
            f"{run['gpu_hours']:,.1f}",
        )
    console.print(drawn)


def _lost(console: Console, result: Result) -> None:
    if not result["lost"]:
        return
    console.print("[bold]Rejected, and why[/bold]")
    for line in _grouped((entry["label"], entry["reason"]) for entry in result["lost"]):
        console.print(f"  {escape(line)}")
    console.print()


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """One line per reason, with the runs it holds for."""
    by_reason: dict[str, list[str]] = {}
    for label, reason in pairs:
        by_reason.setdefault(reason, []).append(label)
    return [f"{', '.join(labels)}: {reason}" for reason, labels in by_reason.items()]


def _shipped(console: Console, result: Result) -> None:
    if result["diff"]:
        console.print("\n[bold]The shipped recipe against the one that came in[/bold]")
        for line in result["diff"].splitlines():
            console.print(Text("  " + line, style=_DIFF_COLOURS.get(line[:1], "dim")))
    console.print(f"\nshipped recipe   {result['shipped_path']}", soft_wrap=True)
    console.print(f"campaign folder  {result['out']}", soft_wrap=True)


def _changes(changed: Mapping[str, Any]) -> str:
    return escape(", ".join(f"{key} {_value(before)} -> {_value(after)}" for key, (before, after) in changed.items()))


def _value(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return str(value)


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f} tokens/s/GPU"


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
