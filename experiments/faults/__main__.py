"""Real training with real faults: what the gate catches, and what it leaves alone.

    python -m experiments.faults [--suite ci|panel|faults|legitimate|all] [--only F016] [--full] [--out results/faults]

Trains every run of the suite that is not in the cache, judges every case by its losses, by the logged gradient norms as
well, and by all signals, and writes ``results.json``, ``report.md`` and ``report.html``. An interrupted suite goes on
where it was. All figures are measured on the trainer of this project. Exit codes: 0; 1 when a legitimate change is
rejected or less than 95 % of the faults are with all signals; 2 unusable input; 3 the environment failed; 130
interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.report.tables import markdown, page
from attune_lab.writing import refuse_unwritable, write_file
from experiments.faults.cache import DEFAULT, Cache
from experiments.faults.judging import LEVELS, Judgement, judge_case
from experiments.faults.plan import Case, Fault
from experiments.faults.report import tables
from experiments.faults.run import Progress, forget, run_all

SUITES = ("ci", "panel", "faults", "legitimate", "all")
LEAST_RECALL = 0.95


def run_suite(
    cases: Sequence[Case], faults: Mapping[str, Fault], cache: Cache, *, workers: int, full: bool = False
) -> list[Judgement]:
    """The judgement on every case, in order; ``full`` runs again what the cache has."""
    runs = list(dict.fromkeys(run for case in cases for run in case.runs))
    if full:
        forget(runs, faults=faults, cache=cache)
    with _display() as tell:
        ends = run_all(runs, faults=faults, cache=cache, workers=workers, tell=tell)
    return [judge_case(case, ends) for case in cases]


def results(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Counts and every case's verdicts, ready for JSON."""
    rejected = {
        kind: {level: sum(j.rejected(level) for j in judged if j.case.kind == kind) for level in LEVELS}
        for kind in ("fault", "legitimate")
    }
    return {
        "cases": {kind: sum(j.case.kind == kind for j in judged) for kind in rejected},
        "rejected": rejected,
        "judgements": [_row(judgement) for judgement in judged],
    }


def _row(judgement: Judgement) -> dict[str, Any]:
    case = judgement.case
    return {
        "name": case.name,
        "kind": case.kind,
        "group": case.group,
        "half": case.half if case.kind == "legitimate" else None,
        "fault": case.candidate.fault,
        "note": case.note,
        "cost_steps": judgement.cost_steps,
        "verdicts": {
            level: {"verdict": verdict.verdict, "reasons": list(verdict.reasons)}
            for level, verdict in judgement.verdicts.items()
        },
    }


def kept(found: Mapping[str, Any]) -> bool:
    """Whether no legitimate change is rejected and enough faults are."""
    faults, caught = found["cases"]["fault"], found["rejected"]["fault"]["signals"]
    return not any(found["rejected"]["legitimate"].values()) and caught >= LEAST_RECALL * faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and judges what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="experiments.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=SUITES, default="all")
    parser.add_argument("--only", action="append", metavar="CASE", help="this case of the suite; repeatable")
    parser.add_argument("--full", action="store_true", help="run everything again, whatever the cache has")
    parser.add_argument("--cache", type=Path, default=DEFAULT, help=f"finished runs (default: {DEFAULT})")
    parser.add_argument("--out", type=Path, default=Path("results/faults"), help="folder of the report")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side (default: 2)")
    parser.add_argument("--json", action="store_true", help="print results.json instead of the report")
    options = parser.parse_args(arguments)
    try:
        found = _report(options)
    except UserError as error:
        return _fail(error, 2)
    except EnvironmentFault as error:
        return _fail(error, 3)
    except KeyboardInterrupt:
        return _fail("interrupted; the finished runs are kept, and the same command goes on", 130)
    return 0 if kept(found) else 1


def _report(options: argparse.Namespace) -> dict[str, Any]:
    """Runs and judges the suite, writes and prints the report; the results."""
    from experiments.faults.suite import FAULTS, cases

    if options.workers < 1:
        raise UserError(f"--workers {options.workers}: give 1 or more.")
    refuse_unwritable(options.out / "results.json")
    start = time.monotonic()
    chosen = _chosen(cases(options.suite), options.only)
    judged = run_suite(chosen, FAULTS, Cache(options.cache), workers=options.workers, full=options.full)
    found = {"suite": options.suite, "seconds": round(time.monotonic() - start, 1), **results(judged)}
    title, drawn = f"Fault suite: {options.suite}", tables(judged)
    intro = (
        f"Cases: {len(judged)}, measured on the project's trainer on {date.today()} in {found['seconds']:.0f} s, runs "
        f"finished before not counted ({os.cpu_count()} {platform.machine()} cores, Python "
        f"{platform.python_version()}, torch {version('torch')})."
    )
    text, encoded = markdown(title, intro, drawn), json.dumps(found, indent=1)
    for name, content in (("results.json", encoded), ("report.md", text), ("report.html", page(title, intro, drawn))):
        write_file(options.out / name, content.encode())
    print(encoded if options.json else text)
    return found


def _chosen(every: Sequence[Case], names: Sequence[str] | None) -> Sequence[Case]:
    """The cases of these names, or all where none is given."""
    if not names:
        return every
    known = [case.name for case in every]
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known)) or known[0]
            raise UserError(f"--only {name}: the suite has no such case, but e.g. {near}.")
    return [case for case in every if case.name in names]


@contextmanager
def _display() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr where that is a terminal, and one line per run that crashed anywhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("{task.fields[runs]}"), BarColumn(), TimeElapsedColumn(), "left:", TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=1.0, runs="")

        def tell(progress: Progress) -> None:
            if progress.result.status == "crash":
                console.print(f"{progress.result.name}: {progress.result.message}")
            bar.update(task, advance=progress.share, runs=f"{progress.done} of {progress.total} runs")

        yield tell


def _fail(error: Exception | str, code: int) -> int:
    print(f"experiments.faults: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
