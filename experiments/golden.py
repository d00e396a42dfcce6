"""Evaluates the convergence check on recorded training curves of Megatron-LM.

    python -m experiments.golden FOLDER [--out DIR] [--json]

FOLDER holds ``curves.parquet`` (case_id, step, lm_loss), ``cases.parquet`` (case_id, commit, gpus, arguments,
environment) and ``pairs.csv`` (case_a, case_b and how their arguments differ: label, sub_label, ...). Every pair is
judged by `attune_lab.gate.convergence.check` from its two curves. Of the settings only this is used: whether the
initial weights or the dropout masks may differ, and the kind of the performance settings that moved. There are no
twins.

Limits are taken from ``same`` and ``legit/same_init`` pairs of half A alone, those whose two cases both fall into it by
a hash of their ids. Pairs are not independent, because one curve sits in many of them: beside Wilson intervals, which
assume that they were, the report has intervals resampled by case.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.gate import convergence
from attune_lab.gate.bands import NO_ALLOWANCE, Band, Change
from attune_lab.gate.configuration import kind_of
from attune_lab.gate.curve import Curve
from attune_lab.gate.start import dropout_masks_may_differ, settings_of, start_may_differ
from attune_lab.gate.verdict import judge
from attune_lab.recipe.registry import registry
from attune_lab.writing import refuse_unwritable, write_file
from experiments.golden_report import Judged, report, text_of

if TYPE_CHECKING:
    import pandas as pd

QUANTUM = 1e-5
"""The recorded losses have five decimals."""
PAIR = (
    "case_a", "case_b", "label", "sub_label", "weak_objective", "differing_kinds", "differing_arguments",
    "max_rel_diff_25", "days_apart", "same_commit", "dropout_masks_may_differ",
)  # fmt: skip
"""Columns of ``pairs.csv`` that the report uses."""
OTHER_COMMIT = Band(3e-4, 3e-4, 0.0, 0.0)
"""What another version of the software adds from step 1 on: of 574 legitimate pairs of half A recorded at two commits
within 60 days, 99 % differ there by less than 2.8e-4; with the 2e-4 of other kernels the limit is 5e-4."""


@dataclass(frozen=True)
class Case:
    """One recorded curve and what it was started with."""

    curve: Curve
    commit: str
    settings: Mapping[str, Any]
    gpus: int | None

    def settings_beside(self, other: Case) -> dict[str, Any]:
        """The settings, with the data-parallel size where it is known of both."""
        if self.gpus is None or other.gpus is None:
            return dict(self.settings)
        ranks = [int(str(self.settings.get(key, 1))) for key in ("tp", "pp", "cp")]
        return {**self.settings, "dp": self.gpus // int(np.prod(ranks))}


def read_cases(folder: Path) -> dict[str, Case]:
    """The recorded curves by case id."""
    import pandas as pd

    table = read_table(folder / "cases.parquet", ("case_id", "commit", "gpus", "arguments", "environment"))
    cases = {str(row["case_id"]): row for row in table.to_dict("records")}
    found = {}
    for name, rows in read_table(folder / "curves.parquet", ("case_id", "step", "lm_loss")).groupby("case_id"):
        if str(name) not in cases:
            raise UserError(f"{folder}: curves.parquet has the case {name}, cases.parquet has not.")
        rows = rows.dropna(subset=["lm_loss"]).sort_values("step")  # noqa: PLW2901
        steps, loss = rows["step"].to_numpy(np.int64), rows["lm_loss"].to_numpy(np.float64)
        case = cases[str(name)]
        found[str(name)] = Case(
            Curve(steps, loss, np.full(loss.size, QUANTUM)), str(case["commit"]), _settings(case),
            None if pd.isna(case["gpus"]) else int(case["gpus"]),
        )  # fmt: skip
    return found


def read_table(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A Parquet or CSV file with at least these columns.

    Raises:
        UserError: missing, damaged, or without one of the columns.
    """
    import pandas as pd

    try:
        table = pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise for damaged files are ValueErrors
        raise UserError(f"{file}: cannot be read as a table ({str(error).splitlines()[0]}).") from error
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise UserError(f"{file}: lacks the column {lacking[0]}.")
    return table


def _settings(case: Mapping[Any, Any]) -> dict[str, Any]:
    environment = json.loads(case["environment"])
    return settings_of(json.loads(case["arguments"])) | {f"env_{k}": v for k, v in environment.items()}


def change_between(a: Case, b: Case) -> Change:
    """The most invasive kind among the performance settings that moved; another commit may bring other kernels."""
    order = list(Change)
    kinds = [Change.SAME_KERNELS if a.commit == b.commit else Change.REORDERED]
    for key in a.settings.keys() | b.settings.keys():
        old, new = a.settings.get(key), b.settings.get(key)
        setting = registry().get(key)
        if old == new:
            continue
        if setting is None:  # an environment variable
            kinds.append(Change.REORDERED)
        elif setting.cls == "performance-only":
            kinds.append(kind_of(setting, old, new))
    return max(kinds, key=order.index)


def judge_pair(row: Mapping[Any, Any], a: Case, b: Case) -> Judged:
    """The verdict on one row of ``pairs.csv``."""
    before, after = a.settings_beside(b), b.settings_beside(a)
    checks = convergence.check(
        a.curve, b.curve, change=change_between(a, b), start=start_may_differ(before, after),
        masks=dropout_masks_may_differ(before, after),
        allowance=NO_ALLOWANCE if a.commit == b.commit else OTHER_COMMIT,
    )  # fmt: skip
    verdict = judge([], checks)
    names = tuple(c.name.removeprefix("convergence.") for c in checks if c.outcome == verdict.verdict != "pass")
    return Judged((row["case_a"], row["case_b"]), row, verdict.verdict, names, verdict.reasons[0])


def evaluate(folder: Path) -> list[Judged]:
    """The verdict on every pair in a folder."""
    cases = read_cases(folder)
    rows = read_table(folder / "pairs.csv", PAIR).to_dict("records")
    unknown = {str(row[name]) for row in rows for name in ("case_a", "case_b")} - cases.keys()
    if unknown:
        raise UserError(f"{folder}: pairs.csv names the case {min(unknown)}, which has no curve.")
    return [judge_pair(row, cases[row["case_a"]], cases[row["case_b"]]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description="Judge recorded training curves.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="folder for golden.json and golden.md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(arguments)
    try:
        if options.out is not None:
            refuse_unwritable(options.out / "golden.json")
        found = report(evaluate(options.folder))
        if options.out is not None:
            write_file(options.out / "golden.json", (json.dumps(found, indent=1) + "\n").encode())
            write_file(options.out / "golden.md", text_of(found).encode())
    except (UserError, EnvironmentFault) as error:
        print(f"experiments.golden: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    print(json.dumps(found, indent=1) if options.json else text_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
