"""What the paper's abstract states, and how it is held against what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attune_lab.report.tables import Table

SOURCE = "ATTUNE, arXiv 2610.17528, abstract"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper beside ours.

    Attributes:
        subject: what it is about.
        theirs, ours: as stated, as simulated here.
        verdict: ``agrees``, ``same direction``, ``disagrees``, or why nothing can be said.
        why: one sentence.
    """

    subject: str
    theirs: str
    ours: str
    verdict: str
    why: str


def compared(theirs: float, low: float, high: float) -> str:
    """How a stated gain stands to the interval of ours: inside it, on the same side of nothing, or neither."""
    if low <= theirs <= high:
        return "agrees"
    same = (theirs > 0 and low > 0) or (theirs < 0 and high < 0)
    return "same direction" if same else "disagrees"


def claims_table(claims: Sequence[Claim], provenance: str) -> Table:
    """The claims as a table; ``provenance`` says how our figures came about."""
    rows = [[claim.subject, claim.theirs, claim.ours, claim.verdict, claim.why] for claim in claims]
    return Table(
        "The paper beside this bench",
        ["claim", "paper", f"here ({provenance})", "", "why"],
        rows,
        f"Left: {SOURCE}. Right: the tables below.",
    )
