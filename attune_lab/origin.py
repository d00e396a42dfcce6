"""What a campaign came from besides its spec: kept with it before its first run, so that it can be made again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.campaign.database import understood
from attune_lab.campaign.seals import ORIGIN
from attune_lab.campaign.store import DATABASE, read_campaign
from attune_lab.contracts import UserError
from attune_lab.lessons.evidence import KEPT, kept, pinned, pinned_options, takes_evidence
from attune_lab.recipe.text_files import read_bytes
from attune_lab.workbench import tuner_entry_points, wrapper_entry_points

if TYPE_CHECKING:
    from attune_lab.recipe.files import RecipeFile

EVIDENCE = "evidence"
"""Key of an origin: the text of the evidence that the tuner is given."""


def origin_of(file: RecipeFile, tuner: str, evidence: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The recipe file with what it includes, the versions at work, the folder that paths in options start from, and the
    text of the evidence (`evidence_of`) where the tuner is given some."""
    known = {} if evidence is None else {EVIDENCE: evidence[KEPT]}
    return {"file": file.to_json(), "versions": versions(tuner), "folder": str(Path.cwd()), **known}


def evidence_of(out: Path, tuner: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The evidence that a tuner's options name, `kept`; None where they name none.

    A campaign that has begun in ``out`` goes on with what it began with, whatever the file has become since.

    Raises:
        UserError: the file is missing, not such a file, or has changed since it was pinned.
    """
    if not takes_evidence(tuner, options):
        return None
    begun = _begun_with(out)
    if begun is not None and _asks_for(begun, options["lessons"]):
        return begun
    return kept(pinned_options(tuner, options)["lessons"])


def _asks_for(begun: Mapping[str, Any], asked: object) -> bool:
    """Whether an option names what a campaign began with: the same file by name, or the same content where pinned."""
    if isinstance(asked, Mapping):
        return bool(asked.get("sha256") == begun["sha256"])
    return isinstance(asked, str) and str(Path(asked)) == begun["file"]


def _begun_with(out: Path) -> dict[str, Any] | None:
    """The evidence that the campaign in ``out`` began with, `kept`; None where nothing ran there, or none is kept."""
    if not (out / DATABASE).is_file():
        return None
    record = read_campaign(out)
    with understood(str(out / DATABASE)):
        text = (record.last_event(ORIGIN) or {}).get(EVIDENCE)
        return {**record.spec["options"]["lessons"], KEPT: str(text)} if record.runs and text else None


def outgrown(evidence: Mapping[str, Any] | None) -> list[str]:
    """One line where a file of evidence is no longer what a campaign knows of it."""
    if evidence is None:
        return []
    try:
        now = pinned(evidence["file"])
    except UserError:
        state = "can no longer be read"
    else:
        if now["sha256"] == evidence["sha256"]:
            return []
        state = f"has changed since (campaigns: {evidence['campaigns']} then, {now['campaigns']} now)"
    return [f"{evidence['file']} {state}; this campaign keeps to what it began with"]


def versions(tuner: str) -> dict[str, str]:
    """Versions of Python, of the packages that figures depend on, and of those that ``tuner`` comes from."""
    name, *wrappers = tuner.split("+")
    entries = [tuner_entry_points().get(name), *(wrapper_entry_points().get(wrapper) for wrapper in wrappers)]
    theirs = {entry.dist.name: entry.dist.version for entry in entries if entry and entry.dist}
    ours = {package: version(package) for package in ("attune-lab", "numpy", "scipy")}
    return {"python": platform.python_version(), **ours, **theirs}


def transcript_named(origin: Mapping[str, Any], options: Mapping[str, Any]) -> Path | None:
    """The transcript that a tuner's options name, None where they name none."""
    named = options.get("transcript")
    return Path(origin["folder"], named) if isinstance(named, str) and named else None


def options_again(origin: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a tuner with the evidence that was kept with the campaign; of a campaign that kept none, where the
    file is found.

    Raises:
        UserError: it is gone, or is another one now.
    """
    lessons = options.get("lessons")
    if not isinstance(lessons, Mapping):
        return dict(options)
    if EVIDENCE in origin:
        return {**options, "lessons": {**lessons, KEPT: origin[EVIDENCE]}}
    from attune_lab.lessons.records import LARGEST_FILE

    path = Path(origin["folder"], str(lessons["file"]))
    try:
        now = hashlib.sha256(read_bytes(path, "file of evidence", LARGEST_FILE)).hexdigest()
    except UserError as error:
        raise UserError(f"option lessons: {error}, the one that the campaign was made with") from None
    if now != lessons["sha256"]:
        raise UserError(f"option lessons: {path} changed since the campaign was made; put the old one back")
    return {**options, "lessons": {**lessons, "file": str(path)}}
