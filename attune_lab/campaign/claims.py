"""What the logs of a campaign claim against what was timed. Nothing here changes a figure; a person is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attune_lab.contracts import UserError

LOGS = "logs"
"""Folder of logs in a campaign's folder."""

LARGEST = 8_000_000
"""Bytes of a log that is read here: a run of twenty steps prints far less, and a campaign must end."""


def discrepancies(out: Path) -> Iterator[str]:
    """One sentence for everything that a log claims and the report of its run does not bear out.

    Args:
        out: folder of a campaign; logs that lie elsewhere are not opened.
    """
    from attune_lab.campaign.store import read_campaign
    from attune_lab.logs import cross_check, read_log

    if not (out / LOGS).is_dir():
        return
    for row in read_campaign(out).runs:
        if row.report is None or row.report.log_path is None or row.repeats is not None:
            continue
        log = out / LOGS / Path(row.report.log_path).name
        if log.is_symlink() or not log.is_file():
            continue
        try:
            found = _too_much(log) or cross_check(row.report, read_log(log))
        except UserError as error:
            found = (str(error).replace(str(log), log.name),)
        yield from (f"run {row.label}: {sentence}" for sentence in found)


def _too_much(log: Path) -> tuple[str, ...]:
    """Why a log is not read: it is long, or packed, and would be long unpacked. Empty where it is."""
    size = log.stat().st_size
    if size > LARGEST:
        return (f"its log has {size:,} bytes; it is not compared with what was timed",)
    return ("its log is packed; it is not compared with what was timed",) if log.suffix == ".gz" else ()
