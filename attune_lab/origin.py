"""What a campaign came from besides its spec: kept with it before its first run, so that it can be made again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import UserError
from attune_lab.recipe.text_files import read_bytes
from attune_lab.workbench import tuner_entry_points, wrapper_entry_points

if TYPE_CHECKING:
    from attune_lab.recipe.files import RecipeFile


def origin_of(file: RecipeFile, tuner: str) -> dict[str, Any]:
    """The recipe file with what it includes, the versions at work, and the folder that paths in options start from."""
    return {"file": file.to_json(), "versions": versions(tuner), "folder": str(Path.cwd())}


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
    """The options of a tuner with the evidence they name (`attune_lab.lessons.evidence.pinned`) where it is found.

    Raises:
        UserError: it is gone, or is another one now.
    """
    lessons = options.get("lessons")
    if not isinstance(lessons, Mapping):
        return dict(options)
    from attune_lab.lessons.records import LARGEST_FILE

    path = Path(origin["folder"], str(lessons["file"]))
    try:
        now = hashlib.sha256(read_bytes(path, "file of evidence", LARGEST_FILE)).hexdigest()
    except UserError as error:
        raise UserError(f"option lessons: {error}, the one that the campaign was made with") from None
    if now != lessons["sha256"]:
        raise UserError(f"option lessons: {path} changed since the campaign was made; put the old one back")
    return {**options, "lessons": {**lessons, "file": str(path)}}
