"""Printing: one JSON object for machines, rich tables for people."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Control characters but tab and newline, and the marks that join, hide or reverse the text around them."""

_NARROWEST = 20
"""Columns; rich divides nothing among the cells of a table in fewer."""

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster, e.g. 64xH200-SXM5-141GB (see attune clusters).")]
CarryOver = Annotated[
    bool | None,
    typer.Option(
        "--carry-over/--as-is",
        help="Adapt a recipe that cannot start here or fills over 88 % of the memory. Default: shipped recipes.",
    ),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", help="Constants from attune calibrate. Default: the project's.", show_default=False),
]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or a name from attune recipes.", show_default=False)]


def emit(data: Mapping[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print ``data`` as JSON, or let ``render`` draw it. Non-finite numbers become null."""
    if as_json:
        print(json.dumps(_finite(data)))
    else:
        render(console())


def console(*, stderr: bool = False) -> Console:
    """A rich console that shows control characters instead of sending them; NO_COLOR is obeyed by rich itself.

    Names and values come from files of strangers: one with a terminal escape sequence in it must not reach the
    terminal as one.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - called by rich while it handles the error; `main` knows what to do

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    made = Printable(stderr=stderr, highlight=False, soft_wrap=False)
    made.width = max(made.width, _NARROWEST)
    return made


def printable(text: str) -> str:
    """``text`` with everything a terminal would obey rather than show replaced by U+FFFD."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def indented(console: Console, text: str | Text, by: int = 2) -> None:
    """Print a paragraph, no markup read, whose every line starts ``by`` columns in."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text) if isinstance(text, str) else text, (0, 0, 0, by), expand=False))


def several(number: int, thing: str) -> str:
    """A number of things, e.g. ``1 campaign`` or ``2 campaigns``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def table(title: str, *columns: str, right: tuple[str, ...] = (), wrap_first: bool = False) -> Table:
    """An empty table in the house style, at least as wide as its title.

    The first column holds names and never wraps, unless it holds sentences (``wrap_first``); columns named in ``right``
    align right.
    """
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.min_width = len(title)
    for index, name in enumerate(columns):
        whole = index == 0 and not wrap_first
        drawn.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=whole)
    return drawn


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
