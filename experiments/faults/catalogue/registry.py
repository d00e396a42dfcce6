"""How the catalogue's modules declare faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.faults.plan import Fault

FAULTS: dict[str, Fault] = {}


def declare(
    name: str,
    title: str,
    *,
    group: str,
    source: str,
    patches: Mapping[str, Callable[..., Any]],
    workload: str = "dense",
    layout: Mapping[str, Any] | None = None,
    note: str = "",
) -> None:
    """Adds a fault to the catalogue; the arguments are those of `Fault`.

    Raises:
        ValueError: the name is taken.
    """
    if name in FAULTS:
        raise ValueError(f"fault {name} is declared twice")
    FAULTS[name] = Fault(name, title, group, source, patches, workload, dict(layout or {}), note)
