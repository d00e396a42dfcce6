"""Where a campaign that was made again is not the one that is stored: one sentence each, the first place first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.seals import ORIGIN, SEAL
from attune_lab.campaign.store import STARTUP_BOUND
from attune_lab.foreign import one_line
from attune_lab.llm.transcript import Drifted

if TYPE_CHECKING:
    from attune_lab.campaign.store import CampaignRecord, RunRow
    from attune_lab.recipe import Recipe

_MAX_VALUE = 160
_GIVEN = frozenset({ORIGIN, SEAL, STARTUP_BOUND})
"""Kinds of events that a replay is given, or that are checked by themselves."""


class NotRecorded(Exception):
    """The campaign wants something of its cluster that was not asked of it before, or that it never answered."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__("the campaign asks for a run that is not stored")
        self.recipe = recipe


@dataclass(frozen=True)
class Replayed:
    """A campaign made again.

    Attributes:
        out: the folder it was made in.
        record: what it stored; None where it never got so far.
        ended: what ended it, if it did not come to its own end.
    """

    out: Path
    record: CampaignRecord | None
    ended: Exception | None


def differences(out: Path, record: CampaignRecord, again: Replayed) -> list[str]:
    """Where ``again`` is not the campaign in ``out``; of one that was cut off, what is stored is all that must be met.

    Runs that follow the first other one are not listed: they follow from it.
    """
    if again.record is None:
        return [f"the campaign does not begin again: {again.ended}"]
    found = next(_runs(record, again.record, again.ended), None)
    if found is not None:
        return [found]
    finished = record.state == "finished"
    if again.ended is not None and (finished or isinstance(again.ended, Drifted)):
        after = f"after run {record.runs[-1].label}" if record.runs else "before the first run"
        return [f"{after} the campaign does not go on as it did: {again.ended}"]
    found_at_end = [*_events(record, again.record)]
    if finished:
        found_at_end += _results("result", record.result or "", again.record.result or "")
    return [*found_at_end, *_files(out, again.out, finished)]


def _runs(record: CampaignRecord, again: CampaignRecord, ended: Exception | None) -> Iterator[str]:
    for then, now in zip(record.runs, again.runs, strict=False):
        if then.recipe.digest == now.recipe.digest and then.report is not None and now.report is None:
            yield f"run {then.label} was not made again: {_why(then, again, ended)}"
        yield from _run(then, now)
    if len(again.runs) < len(record.runs):
        then = record.runs[len(again.runs)]
        yield f"run {then.label} was not made again: {_why(then, again, ended)}"
    elif len(again.runs) > len(record.runs) and record.state == "finished":
        yield f"run {again.runs[len(record.runs)].label} is not stored, and was made again"


def _run(then: RunRow, now: RunRow) -> Iterator[str]:
    """Where a run differs; the first place says enough."""
    if then.label != now.label:
        yield f"run {then.label} was not made again: {now.label} came in its place"
    elif then.recipe.digest != now.recipe.digest:
        yield f"run {then.label} was not made again: {_other_recipe(then.recipe, now.recipe)}"
    else:
        yield from (f"run {then.label}, {line}" for line in _entries(_plain_run(then), _plain_run(now)))


def _plain_run(row: RunRow) -> dict[str, Any]:
    report = None if row.report is None else _moved(json.loads(row.report.model_dump_json()))
    amounts = {"reserved GPU-microseconds": row.reserved_us, "charged GPU-microseconds": row.charged_us}
    return {"purpose": row.purpose, **row.proposal, **amounts, "report": report, "repeats": row.repeats}


def _why(then: RunRow, again: CampaignRecord, ended: Exception | None) -> str:
    if isinstance(ended, NotRecorded):
        return _other_recipe(then.recipe, ended.recipe)
    if ended is not None:
        return str(ended)
    end = again.last_event("search_ended") or {}
    return f"the search had ended ({end.get('reason', 'without a reason')})"


def _other_recipe(then: Recipe, now: Recipe) -> str:
    changes = [
        f"{key} {_shown(before)} then, {_shown(after)} now" for key, (before, after) in then.changes_to(now).items()
    ]
    return f"another recipe came in its place ({one_line('; '.join(changes)) or 'in what it carries'})"


def _events(record: CampaignRecord, again: CampaignRecord) -> Iterator[str]:
    for kind, data in record.events:
        if kind not in _GIVEN:
            now = again.last_event(kind)
            yield from (f"{kind.replace('_', ' ')}, {line}" for line in _entries({"": data}, {"": now}))


def _results(name: str, then: str, now: str) -> Iterator[str]:
    try:
        stored = _plain_result(then)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        yield f"{name} is not what the campaign wrote"
    else:
        yield from (f"{name}, {line}" for line in _entries(stored, _plain_result(now)))


def _plain_result(text: str) -> dict[str, Any]:
    """A result wherever its campaign's folder is."""
    result = _moved(json.loads(text))
    result.pop("out", None)
    result["runs"] = [_moved(run) for run in result["runs"]]
    return result


def _moved(plain: dict[str, Any]) -> dict[str, Any]:
    """``plain`` with paths in the campaign's folder as they are from there."""
    paths = {key: Path(plain[key]) for key in ("shipped_path", "log_path") if plain.get(key)}
    return {**plain, **{key: "/".join(path.parts[-2:]) for key, path in paths.items()}}


def _files(out: Path, again: Path, finished: bool) -> Iterator[str]:
    """Differences in the files that a campaign leaves for its user."""
    for made in sorted(path for path in again.rglob("*") if path.is_file()):
        name = made.relative_to(again)
        if name.parts[0] not in ("shipped", "result.json", "decisions.txt"):
            continue
        if not (out / name).is_file():
            yield from [f"{name} is missing"] if finished else []
        elif name.parts[0] == "result.json":
            yield from _results(str(name), (out / name).read_bytes().decode(errors="replace"), made.read_text())
        elif (then := (out / name).read_bytes()) != (now := made.read_bytes()):
            yield f"{name} is not what the campaign shipped or said, from line {_first_line(then, now)} on"


def _first_line(then: bytes, now: bytes) -> int:
    pairs = zip(then.split(b"\n"), now.split(b"\n"), strict=False)
    return next(
        (number for number, (one, other) in enumerate(pairs, start=1) if one != other),
        1 + min(then.count(b"\n"), now.count(b"\n")),
    )


def _entries(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, deepest place first found; one line for a whole value."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in {**then, **now}:
            yield from _entries(then.get(key), now.get(key), f"{path} {key}".strip())
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True), start=1):
            yield from _entries(one, other, f"{path} {number}")
    elif json.dumps(then) != json.dumps(now):
        yield f"{path}: {_shown(then)} then, {_shown(now)} now"


def _shown(value: Any) -> str:
    return one_line(json.dumps(value), _MAX_VALUE)
