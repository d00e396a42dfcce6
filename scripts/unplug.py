"""Deletes tuners of `baselines`, with tests and benchmarks, from copies of the last commit: all else still works.

python scripts/unplug.py [NAME ...] [--run tests/baselines tests/attune_lab/study]

One at a time, by default every tuner and wrapper. Checked are lint, collection of all tests, what is left over, loading
of the others and the studies of `attune reproduce`; `--run` runs tests besides. The copy's entry points are in force.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOADS = """
from attune_lab.workbench import tuner_entry_points, wrapper_entry_points
from experiments.reproduce.bench import has_tuners, shipped_study

left = tuner_entry_points() | wrapper_entry_points()
assert {name!r} not in left
assert all(entry.load() for entry in left.values())
studies = ("main", "tuners", "rules", "repair", "school", "learning", "sensitivity")
assert all(shipped_study(name) for name in studies if has_tuners(name))
"""
RUN = ["tests/baselines/test_unplugging.py", "tests/test_documents.py"]


def entry_points(project: Path) -> dict[str, dict[str, str]]:
    """The entry points of a pyproject.toml, by group and name."""
    groups: dict[str, dict[str, str]] = tomllib.loads(project.read_text())["project"]["entry-points"]
    return groups


def unplug(name: str, module: str, copy: Path) -> None:
    """Make ``copy`` the tree without that tuner, its tests and its entry point, installed for what runs there."""
    tree = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", copy], input=tree, check=True)
    own = copy / module.replace(".", "/")
    shutil.rmtree(own) if own.is_dir() else own.with_suffix(".py").unlink()
    for file in [*(copy / "tests").rglob("*.py"), *(copy / "benchmarks").glob("*.py")]:
        if re.search(rf"(?m)^\s*(from|import) {module}\b", file.read_text()):
            file.unlink()
    project = copy / "pyproject.toml"
    project.write_text(re.sub(rf'(?m)^{name} = "baselines\..*\n', "", project.read_text()))
    (info := copy / "attune_lab-0.dist-info").mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: attune-lab\nVersion: 0\n")
    for group, entries in entry_points(project).items():
        with info.joinpath("entry_points.txt").open("a") as file:
            file.writelines([f"[{group}]\n", *(f"{key} = {to}\n" for key, to in entries.items())])


def main() -> None:
    """Check every tuner named; the exit code is 1 where anything broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--run", nargs="+", default=[], metavar="TESTS")
    options, broken = parser.parse_args(), False
    groups = entry_points(ROOT / "pyproject.toml").values()
    known = {name: to for group in groups for name, to in group.items() if to.startswith("baselines.")}
    for name in options.names or known:
        always = [["-m", "ruff", "check"], ["-m", "pytest", "--collect-only"], ["-m", "pytest", *RUN, *options.run]]
        with tempfile.TemporaryDirectory() as copy:
            unplug(name, known[name].split(":")[0], Path(copy))
            for words in [["-c", LOADS.format(name=name)], *always]:
                command, there = [sys.executable, *words], {**os.environ, "PYTHONPATH": copy}
                done = subprocess.run(command, check=False, cwd=copy, env=there, capture_output=True, text=True)
                broken |= done.returncode != 0
                how = f"broke\n{done.stdout}{done.stderr}" if done.returncode else "holds"
                print(f"without {name}: {' '.join(words).strip()[-60:]} {how}", flush=True)
    sys.exit(broken)


if __name__ == "__main__":
    main()
