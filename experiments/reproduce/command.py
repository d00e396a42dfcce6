"""What `attune reproduce` runs: tables by name, each written as Markdown and as one HTML page."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attune_lab.contracts import UserError
from attune_lab.report.tables import markdown, page
from attune_lab.study.provenance import circumstances
from attune_lab.writing import refuse_unwritable, write_file
from experiments.reproduce import (
    ablations_table,
    gate_table,
    learning_table,
    main_table,
    sensitivity_table,
    tuners_table,
)
from experiments.reproduce.bench import QUICK_BUDGET, Bench, Section
from experiments.reproduce.claims import claims_table

TABLES: dict[str, Callable[[Bench], Section]] = {
    "main": main_table.reproduce,
    "tuners": tuners_table.reproduce,
    "ablations": ablations_table.reproduce,
    "learning": learning_table.reproduce,
    "sensitivity": sensitivity_table.reproduce,
    "gate": gate_table.reproduce,
}


def run(names: Sequence[str], out: Path, **how: Any) -> dict[str, Any]:
    """Make tables and write them into ``out``; what was written and what they say, JSON-ready.

    Args:
        names: of `TABLES`, or ``all``.
        out: folder; an interrupted table goes on where it stopped.
        how: ``quick``, ``workers``, ``engine`` and ``observer`` of a `Bench`.

    Raises:
        UserError: no such table.
        EnvironmentFault: what a table needs is not installed, or ``out`` cannot be written.
    """
    wanted = _known(names)
    bench = Bench(out, **how)
    for name in wanted:
        refuse_unwritable(out / f"{name}.md")
    return {
        "out": str(out),
        "quick": bench.quick,
        "tables": {name: _made(TABLES[name], name, bench) for name in wanted},
    }


def _known(names: Sequence[str]) -> list[str]:
    """The tables meant, each once, in the order they are made."""
    known = [*TABLES, "all"]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"no table is called {name!r}; {hint}")
    return [name for name in TABLES if name in names or "all" in names]


def _made(make: Callable[[Bench], Section], name: str, bench: Bench) -> dict[str, Any]:
    section = make(bench)
    quick = f" A quick look, not to be quoted: one world, and {QUICK_BUDGET} for every budget named here."
    note = quick if bench.quick else ""
    title, intro = section.title, f"{section.intro}{note} {_made_with(name)}"
    tables = [*([claims_table(section.claims, section.provenance)] if section.claims else []), *section.tables]
    texts = {
        f"{name}.md": markdown(title, intro, tables),
        f"{name}.html": page(title, intro.replace("`", ""), tables, section.pictures),
    }
    for file, text in texts.items():
        write_file(bench.out / file, text.encode())
    return {
        "title": title,
        "intro": intro,
        "provenance": section.provenance,
        "claims": [asdict(claim) for claim in section.claims],
        "tables": [
            {"title": t.title, "note": t.note, "header": [*t.header], "rows": [*map(list, t.rows)]} for t in tables
        ],
        "written": [str(bench.out / file) for file in texts],
    }


def _made_with(name: str) -> str:
    known = circumstances()
    code = f"version {known['version']}, commit {(known['commit'] or 'not known')[:12]}"
    return f"Made by `attune reproduce {name}` ({code}) on {known['date'][:10]}, {known['machine']}."
