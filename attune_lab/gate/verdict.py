"""The gate's answer: what was checked, what was found, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "reject", "inconclusive", "skipped"]

OUTCOMES: tuple[Outcome, ...] = ("reject", "inconclusive", "pass", "skipped")
"""The worst first."""

MEASURED = ("value", "difference", "mean", "ratio")
"""Names a measured figure may have; its limit is called ``limit``."""


@dataclass(frozen=True)
class Check:
    """One test of the gate.

    Attributes:
        name: e.g. ``convergence.step_1`` or ``configuration.gbs``.
        outcome: what this test alone would say.
        reason: one sentence a person can act on.
        figures: the measured value and the limit it was held against.
        family: the likely fault, as a few words for a person; empty where the test passes or cannot say.
    """

    name: str
    outcome: Outcome
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)
    family: str = ""

    @property
    def measured(self) -> float | None:
        """The figure that was held against the limit; None where the check measured none."""
        return next((value for key, value in self.figures.items() if key in MEASURED), None)


@dataclass(frozen=True)
class Verdict:
    """The verdict with its reasons (of the checks that decided it) and every check that was made."""

    verdict: Outcome
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def families(self) -> tuple[str, ...]:
        """Likely kinds of fault of the checks that decided, the strongest first."""
        found = (check.family for check in self.checks if check.outcome == self.verdict != "pass" and check.family)
        return tuple(dict.fromkeys(found))

    def sorted_checks(self) -> list[Check]:
        """The checks, those that speak against the candidate first."""
        return sorted(self.checks, key=lambda check: OUTCOMES.index(check.outcome))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        checks = [{**asdict(c), "figures": dict(c.figures)} for c in self.checks]
        return {"verdict": self.verdict, "reasons": list(self.reasons), "checks": checks}


def judge(
    configuration: Iterable[Check] | None, convergence: Iterable[Check] | None, evidence: Iterable[Check] = ()
) -> Verdict:
    """The verdict over all checks: any reject rejects, else anything open leaves it inconclusive.

    Checks and reasons stand in order of strength: what settings say is certain, signals name the place of a fault, a
    loss says only that there is one.

    Args:
        configuration: checks of the settings; None when not both recipes are known (the curves decide alone).
        convergence: checks of the curves; None when nothing was run, which is never a pass.
        evidence: checks of signals from inside the runs, where they recorded any.
    """
    checks = [*(configuration or ()), *evidence, *(convergence or ())]
    if convergence is None:
        checks.append(
            Check(
                "convergence",
                "inconclusive",
                "No training runs were compared: run both recipes and name each with its log.",
            )
        )
    if not any(check.name.startswith("configuration") for check in checks):
        checks.append(
            Check("configuration", "skipped", "Not both runs came with a recipe: settings were not compared.")
        )
    for outcome in OUTCOMES[:2]:
        reasons = tuple(c.reason for c in checks if c.outcome == outcome)
        if reasons:
            return Verdict(outcome, reasons, tuple(checks))
    return Verdict("pass", tuple(c.reason for c in checks if c.outcome == "pass"), tuple(checks))
