"""Seals: a digest of every finished run and of all that was stored before it, so that a later edit shows."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attune_lab.campaign.store import CampaignRecord, RunRow

ORIGIN, SEAL = "origin", "seal"
"""Kinds of events: what a campaign came from besides its spec, and the seal of a finished run."""


def first_seal(record: CampaignRecord) -> str:
    """What the seal of the first run builds on: the spec and the origin of the campaign."""
    return _sha256([record.spec, record.last_event(ORIGIN)])


def sealed(before: str, row: RunRow) -> str:
    """The seal of a finished run, given the one before it."""
    report = None if row.report is None else row.report.model_dump_json(exclude_defaults=True)
    amounts = row.reserved_us, row.charged_us
    return _sha256(
        [before, row.label, row.purpose, row.recipe.digest, dict(row.proposal), amounts, report, row.repeats]
    )


def broken_seal(record: CampaignRecord) -> str | None:
    """What does not fit the seals that were stored with it, in one sentence; None where all does.

    A seal is no signature: it shows an edit of what is stored, not one of the seals with it.
    """
    kept = [data for kind, data in record.events if kind == SEAL]
    finished = [row for row in record.runs if row.report is not None]
    seal = first_seal(record)
    for row, stored in zip(finished, kept, strict=False):
        seal = sealed(seal, row)
        if seal != stored:
            before = "" if row is not finished[0] else ", or the request or the recipe file behind the campaign,"
            return f"run {row.label}: what is stored of it{before} was edited since it finished"
    if len(finished) != len(kept):
        return f"{len(kept)} runs were sealed when they finished and {len(finished)} are stored"
    return None


def _sha256(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
