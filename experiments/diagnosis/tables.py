"""Confusion matrices, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attune_lab.writing import write_file


@dataclass
class Confusion:
    """Counts of (truth, told).

    Attributes:
        name: of the file.
        title: of the table.
    """

    name: str
    title: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, truth: str, told: str) -> None:
        """Count one case."""
        self.counts[truth, told] += 1

    @property
    def cases(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    @property
    def right(self) -> int:
        """How many were told as they are."""
        return sum(count for (truth, told), count in self.counts.items() if truth == told)

    def classes(self) -> list[str]:
        """Every truth, in order of name."""
        return sorted({truth for truth, _ in self.counts})

    def recall(self, truth: str) -> float:
        """Share of a class that was told as it is."""
        return self.counts[truth, truth] / sum(n for (is_, _), n in self.counts.items() if is_ == truth)

    def summary(self) -> str:
        """One line."""
        if not self.cases:
            return f"{self.title}: no cases"
        mean = sum(map(self.recall, self.classes())) / len(self.classes())
        share = self.right / self.cases
        return f"{self.title}: {self.right} of {self.cases} right ({share:.1%}), mean over classes {mean:.1%}"

    def csv(self) -> str:
        """One row for each truth, one column for each symptom told."""
        told = sorted({told for _, told in self.counts})
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["truth", *told])
        writer.writerows([truth, *(self.counts[truth, one] for one in told)] for truth in self.classes())
        return out.getvalue()

    def markdown(self) -> str:
        """One row for each truth: how many, how many right, and what else was told."""
        lines = ["| truth | cases | right | told instead |", "|---|---:|---:|---|"]
        for truth in self.classes():
            row = {told: n for (is_, told), n in self.counts.items() if is_ == truth}
            wrong = sorted(((n, told) for told, n in row.items() if told != truth), reverse=True)
            others = ", ".join(f"{told} {n}" for n, told in wrong)
            lines.append(f"| `{truth}` | {sum(row.values())} | {self.recall(truth):.0%} | {others} |")
        return "\n".join(lines)


def write(folder: Path, tables: Sequence[Confusion]) -> str:
    """The Markdown of all tables, written as ``diagnosis.md`` beside one CSV each."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        write_file(folder / f"{table.name}.csv", table.csv().encode())
    text = "\n\n".join(f"{table.summary()}\n\n{table.markdown()}" for table in tables) + "\n"
    write_file(folder / "diagnosis.md", text.encode())
    return text
