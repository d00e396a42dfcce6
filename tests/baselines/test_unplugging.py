"""Any tuner can be deleted with its test, and everything else still works: nothing else leans on it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PLUGGED = sorted(
    {
        entry.split(":")[0]
        for group in ("attune.tuners", "attune.wrappers")
        for entry in PROJECT[group].values()
        if entry.startswith("baselines.")
    }
)
SOURCES = [path for room in ("attune_lab", "baselines", "experiments", "tests") for path in (ROOT / room).rglob("*.py")]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, relative ones resolved."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


IMPORTS = {path: set(imported(path)) for path in SOURCES}


def leans_on(path: Path, module: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in IMPORTS[path])


def own_files(module: str) -> set[Path]:
    """The files that are the tuner: its module, or its folder where it has one to itself."""
    path = ROOT.joinpath(*module.split("."))
    return {path.with_suffix(".py"), *path.rglob("*.py")}


@pytest.mark.parametrize("module", PLUGGED)
def test_no_other_code_leans_on_it(module: str) -> None:
    others = [path for path in SOURCES if path not in own_files(module) and path.relative_to(ROOT).parts[0] != "tests"]
    assert [str(path.relative_to(ROOT)) for path in others if leans_on(path, module)] == []


@pytest.mark.parametrize("module", PLUGGED)
def test_its_test_tests_nothing_else(module: str) -> None:
    tests = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "tests" and leans_on(path, module)]
    assert tests, f"{module} has no test"
    shared = {
        str(path.relative_to(ROOT)): other
        for path in tests
        for other in PLUGGED
        if other != module and leans_on(path, other)
    }
    assert shared == {}


@pytest.mark.parametrize("module", PLUGGED)
def test_it_is_where_its_entry_point_says(module: str) -> None:
    assert any(path.is_file() for path in own_files(module))
