"""Printing: one JSON object for machines, rich tables for people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster, e.g. 64xH200-SXM5-141GB (see attune clusters).")]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or a name from attune recipes.", show_default=False)]


def emit(data: Mapping[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print ``data`` as JSON, or let ``render`` draw it. Non-finite numbers become null."""
    if as_json:
        print(json.dumps(_finite(data), ensure_ascii=False))
    else:
        render(console())


def console(*, stderr: bool = False) -> Console:
    """A rich console; NO_COLOR and non-terminals are obeyed by rich itself."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the house style: the first column never wraps, those named in ``right`` align right."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        drawn.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=index == 0)
    return drawn


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
