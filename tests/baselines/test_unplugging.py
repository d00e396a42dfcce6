"""Any tuner can be deleted with its tests and benchmarks, and everything else still works: nothing else leans on it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
NAMES = {
    name: entry.split(":")[0]
    for group in ("attune.tuners", "attune.wrappers")
    for name, entry in GROUPS[group].items()
    if entry.startswith("baselines.")
}
"""Module of each tuner and wrapper of `baselines`, by the name it is registered under."""

PLUGGED = sorted(set(NAMES.values()))
ROOMS = ("attune_lab", "baselines", "benchmarks", "experiments", "scripts", "simulator", "tests")
SOURCES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
TESTS, BENCHMARKS = ROOT / "tests", ROOT / "benchmarks"


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, relative ones resolved."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


IMPORTS = {path: set(imported(path)) for path in SOURCES}


def leaning_on(module: str) -> set[Path]:
    """Files that import the module, or something of it."""
    return {
        path
        for path, names in IMPORTS.items()
        if any(name == module or name.startswith(f"{module}.") for name in names)
    }


def own_files(module: str) -> set[Path]:
    """The files that are the tuner: its module, or its folder where it has one to itself."""
    path = ROOT.joinpath(*module.split("."))
    return {path.with_suffix(".py"), *path.rglob("*.py")} & IMPORTS.keys()


@pytest.mark.parametrize("module", PLUGGED)
def test_no_other_code_leans_on_it(module: str) -> None:
    assert own_files(module)
    others = leaning_on(module) - own_files(module)
    assert {path for path in others if not {TESTS, BENCHMARKS} & {*path.parents}} == set()
    for benchmark in others & {*BENCHMARKS.iterdir()}:
        assert leaning_on(f"benchmarks.{benchmark.stem}") | leaning_on(benchmark.stem) <= others


@pytest.mark.parametrize("module", PLUGGED)
def test_its_tests_stand_with_the_tuners_and_test_nothing_else(module: str) -> None:
    tests = {path for path in leaning_on(module) if TESTS in path.parents}
    assert tests, f"{module} has no test"
    assert {path for path in tests if TESTS / "baselines" not in path.parents} == set()
    assert {other for other in PLUGGED if other != module and leaning_on(other) & tests} == set()


@pytest.mark.parametrize("module", PLUGGED)
def test_no_document_names_its_files(module: str) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    files = [path.relative_to(ROOT).as_posix() for path in own_files(module)]
    assert [page.name for page in documents if any(file in page.read_text(encoding="utf-8") for file in files)] == []


def test_no_shared_code_is_left_over() -> None:
    """Fails where a tuner was deleted that alone used a shared module: that belonged into the tuner's own files."""
    shared = {path for path in (ROOT / "baselines").glob("*/*.py") if path.name != "__init__.py"}
    shared -= {path for module in PLUGGED for path in own_files(module)}
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in shared}
    assert {name for name in names.values() if all(TESTS in path.parents for path in leaning_on(name))} == set()
