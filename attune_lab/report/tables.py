"""Titled tables of plain text, as Markdown and as one HTML page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 2rem}td,th{padding:.2rem .7rem;border-bottom:1px solid #ccc;"
    "text-align:left;vertical-align:top}th{border-bottom:2px solid #666}"
    "td.figure,th.figure{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "figure{margin:1rem 0 2rem}figure svg{max-width:100%;height:auto}figcaption{color:#555}"
    ".wide{overflow-x:auto}"
)


@dataclass(frozen=True)
class Table:
    """A titled table of plain text; ``note`` stands below the title, columns in ``figures`` are set to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    figures: frozenset[str] = field(default_factory=frozenset)


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share of ``hits`` in ``trials`` independent trials, by default at 95 %; (0, 1) without trials.

    **Source:** E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209.
    """
    if trials == 0:
        return 0.0, 1.0
    share, spread = hits / trials, z * z / trials
    centre = share + spread / 2
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4)
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def markdown(title: str, intro: str, found: Iterable[Table]) -> str:
    """The report as Markdown."""
    parts = [f"# {title}", intro]
    for table in found:
        rule = ["---:" if name in table.figures else "---" for name in table.header]
        lines = [table.header, rule, *table.rows]
        parts += [f"## {table.title}", *([table.note] if table.note else [])]
        parts.append("\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines))
    return "\n\n".join(parts) + "\n"


def page(title: str, intro: str, found: Iterable[Table], pictures: Mapping[str, str] | None = None) -> str:
    """The report as an HTML page that needs nothing else.

    Args:
        title, intro, found: what it says.
        pictures: caption -> SVG element, trusted: shown after the first table.
    """
    parts = [f"<h1>{escape(title)}</h1><p>{escape(intro)}</p>"]
    shown = "".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in (pictures or {}).items()
    )
    for number, table in enumerate(found):
        parts += [_table(table), shown if number == 0 else ""]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(table: Table) -> str:
    classes = [' class="figure"' if name in table.figures else "" for name in table.header]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(classes, table.header, strict=True))
    rows = (
        "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(classes, row, strict=True)) for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f"<h2>{escape(table.title)}</h2><p>{escape(table.note)}</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
