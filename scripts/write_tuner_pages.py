"""Writes docs/tuners.md: what each installed tuner is, from the docstring of its module.

python scripts/write_tuner_pages.py > docs/tuners.md
"""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

from attune_lab.workbench import tuner_entry_points, wrapper_entry_points

INTRODUCTION = """# Tuners

Every tuner is asked for a recipe and told its report (`attune_lab.contracts.Tuner`); it is given the recipe, the search
space, the cost model and a view of the budget, never the world. `attune tune … --tuner NAME --option KEY=VALUE` runs
one, `NAME+repair` and `NAME+feasible-first` put it into a wrapper. What a tuner is, what of its source is kept and what
is reconstructed stands below, from the docstring of its module; `scripts/write_tuner_pages.py` collects them.
"""


def main() -> None:
    """Print the page."""
    parts = [INTRODUCTION.strip()]
    for title, entries in (("Tuners", tuner_entry_points()), ("Wrappers", wrapper_entry_points())):
        parts.append(f"## {title}")
        parts += [section(entry) for _, entry in sorted(entries.items())]
    print("\n\n".join(parts))


def section(entry: EntryPoint) -> str:
    """What the page says of a tuner or wrapper."""
    return f"### {entry.name}\n\n`{entry.value}`\n\n{docstring(entry.module)}"


def docstring(module: str) -> str:
    """The docstring of a module, read without importing it, as Markdown."""
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""
    return inspect.cleandoc(text).replace("``", "`")


if __name__ == "__main__":
    main()
