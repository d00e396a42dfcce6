"""Tables over judged pairs of recorded curves: shares with intervals, by argument, and every rejection explained."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attune_lab.gate.curve import Floats
from attune_lab.report.tables import wilson

DRAWS = 1000
OUTCOMES = ("pass", "reject", "inconclusive")
INIT_KEPT = ("objective_only", "with_performance")
FAR_APART_DAYS = 60


@dataclass(frozen=True)
class Judged:
    """One pair and what the check said of it.

    Attributes:
        cases: the two ids.
        row: the pair's row of ``pairs.csv``.
        verdict, names, reason: the outcome, the checks that decided it and the first reason.
    """

    cases: tuple[str, str]
    row: Mapping[Any, Any]
    verdict: str
    names: tuple[str, ...]
    reason: str

    @property
    def group(self) -> str:
        """Label and sub-label; weak objective pairs apart."""
        return f"{self.row['label']}/{self.row['sub_label']}{' (weak)' if self.row['weak_objective'] else ''}"

    @property
    def half(self) -> str:
        """``A`` or ``B`` where both cases fall into it, else ``-``."""
        halves = {half_of(case) for case in self.cases}
        return halves.pop() if len(halves) == 1 else "-"


def half_of(case: str) -> str:
    """The half of the data a case belongs to."""
    return "AB"[hashlib.sha256(case.encode()).digest()[0] % 2]


def legitimate(pair: Judged) -> bool:
    """A pair that the check must not reject."""
    return bool(pair.row["label"] == "same" or pair.row["sub_label"] == "same_init")


def told_apart(pair: Judged) -> bool:
    """A pair that the curve alone should tell apart."""
    return bool(
        pair.row["label"] == "objective" and pair.row["sub_label"] in INIT_KEPT and not pair.row["weak_objective"]
    )


def other_start(pair: Judged) -> bool:
    """A pair whose initial weights may differ for a legitimate reason."""
    return bool(pair.row["sub_label"] == "layout_dependent_init")


TARGETS: Mapping[str, tuple[Callable[[Judged], bool], str]] = {
    "same and legit/same_init rejected": (legitimate, "reject"),
    "legit/layout_dependent_init inconclusive": (other_start, "inconclusive"),
    "objective with the initialisation kept, not weak, rejected": (told_apart, "reject"),
}


def report(pairs: Sequence[Judged]) -> dict[str, Any]:
    """The whole report, JSON-ready."""
    return {
        "pairs": len(pairs),
        "targets": {
            name: {half: _share([p for p in pairs if asked(p) and p.half in halves], outcome)
                   for half, halves in (("all", "AB-"), ("half A", "A"), ("half B", "B"))}
            for name, (asked, outcome) in TARGETS.items()
        },
        "groups": {group: dict(Counter(p.verdict for p in pairs if p.group == group))
                   for group in sorted({p.group for p in pairs})},
        "arguments": _by_argument([p for p in pairs if told_apart(p)]),
        "rejected": [_explained(p) for p in pairs if legitimate(p) and p.verdict == "reject"],
    }  # fmt: skip


def _share(pairs: Sequence[Judged], outcome: str) -> dict[str, Any]:
    """Share of an outcome, with both intervals."""
    hits = [p.verdict == outcome for p in pairs]
    if not hits:
        return {"pairs": 0}
    return {
        "pairs": len(hits),
        "hits": sum(hits),
        "share": sum(hits) / len(hits),
        "wilson": wilson(sum(hits), len(hits)),
        "by_case": by_case([p.cases for p in pairs], np.array(hits, dtype=float)),
    }


def by_case(cases: Sequence[tuple[str, str]], hits: Floats, draws: int = DRAWS) -> tuple[float, float]:
    """95 % interval of a share when the cases, not the pairs, are drawn anew.

    A pair counts as often as both of its cases were drawn, multiplied.

    Args:
        cases: the two ids of each pair.  hits: 1 or 0 for each pair, shape (P,).  draws: number of resamples.
    """
    names = {name: i for i, name in enumerate(sorted({name for pair in cases for name in pair}))}
    first, second = np.array([[names[a], names[b]] for a, b in cases]).T
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(draws):
        count = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        weight = (count[first] * count[second]).astype(float)
        if weight.sum() > 0:
            shares.append(float((weight * hits).sum() / weight.sum()))
    low, high = np.quantile(shares, [0.025, 0.975]) if shares else (0.0, 1.0)
    return float(low), float(high)


def _by_argument(pairs: Sequence[Judged]) -> list[dict[str, Any]]:
    """Share rejected by the kinds of argument that differ, the largest first."""
    kinds: dict[str, list[Judged]] = {}
    for pair in pairs:
        kinds.setdefault(str(pair.row["differing_kinds"]), []).append(pair)
    rows = [
        {
            "kinds": kind,
            "pairs": len(found),
            "rejected": sum(p.verdict == "reject" for p in found),
            "median_difference": float(np.median([p.row["max_rel_diff_25"] for p in found])),
        }
        for kind, found in kinds.items()
    ]
    return sorted(rows, key=lambda row: -row["pairs"])


def _explained(pair: Judged) -> dict[str, Any]:
    """A rejected legitimate pair and the likely cause, from what is known of it beside its curves."""
    row = pair.row
    arguments = [name for name in json.loads(row["differing_arguments"]) if not name.startswith("*")]
    if row["days_apart"] > FAR_APART_DAYS:
        cause = f"recorded {row['days_apart']} days apart: other software"
    elif row["dropout_masks_may_differ"] and "step_1" not in pair.names:
        cause = "other dropout masks, although the first losses agree by chance"
    elif not row["same_commit"]:
        cause = f"recorded at two commits, {row['days_apart']} days apart: other software, or a changed default"
    else:
        cause = f"other kernels: {', '.join(arguments)}"
    return {
        "cases": pair.cases, "group": pair.group, "checks": pair.names, "cause": cause, "reason": pair.reason,
    }  # fmt: skip


def text_of(found: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["| target | pairs | share | Wilson 95 % | resampled by case 95 % |", "|---|---|---|---|---|"]
    for name, halves in found["targets"].items():
        for half, share in halves.items():
            if share["pairs"]:
                spans = [" – ".join(f"{100 * x:.1f}" for x in share[key]) for key in ("wilson", "by_case")]
                figures = f"{share['hits']} of {share['pairs']} | {100 * share['share']:.1f} %"
                lines.append(f"| {name}, {half} | {figures} | {spans[0]} | {spans[1]} |")
    lines += ["", "| pairs | number | pass | reject | inconclusive |", "|---|---|---|---|---|"]
    for group, counts in found["groups"].items():
        total = sum(counts.values())
        shares = " | ".join(f"{100 * counts.get(outcome, 0) / total:.1f} %" for outcome in OUTCOMES)
        lines.append(f"| {group} | {total} | {shares} |")
    lines += ["", "| objective arguments, initialisation kept | pairs | rejected | median difference |"]
    lines += ["|---|---|---|---|"]
    for row in found["arguments"]:
        lines.append(f"| {row['kinds']} | {row['pairs']} | {row['rejected']} | {row['median_difference']:.1e} |")
    lines += ["", "Rejected although only performance settings differ, by cause:", ""]
    causes = Counter((r["group"], r["cause"]) for r in found["rejected"])
    lines += [f"- {count} x {group}: {cause}" for (group, cause), count in causes.most_common()]
    return "\n".join(lines) + "\n"
