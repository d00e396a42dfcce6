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

FILE_OPTIONS = ("lessons",)
"""Options of tuners that name a file to read; a transcript is written, and kept by whoever writes it."""

_MAX_BYTES = 100_000_000


def origin_of(file: RecipeFile, tuner: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe file with what it includes, the versions at work, and digests of the files that options name.

    Raises:
        UserError: an option names a file that is not there.
    """
    named = {key: _path(options[key]) for key in FILE_OPTIONS if options.get(key)}
    transcript = options.get("transcript")
    return {
        "file": file.to_json(),
        "versions": versions(tuner),
        "files": {key: {"path": str(Path(path).resolve()), "sha256": digest_of(path)} for key, path in named.items()},
        "transcript": str(Path(transcript).resolve()) if isinstance(transcript, str) and transcript else None,
    }


def _path(option: Any) -> str:
    """The file that an option names, by its path or as `attune_lab.lessons.evidence.pinned` does."""
    return str(option["file"]) if isinstance(option, Mapping) and "file" in option else str(option)


def versions(tuner: str) -> dict[str, str]:
    """Versions of Python, of the packages that figures depend on, and of those that ``tuner`` comes from."""
    name, *wrappers = tuner.split("+")
    entries = [tuner_entry_points().get(name), *(wrapper_entry_points().get(wrapper) for wrapper in wrappers)]
    theirs = {entry.dist.name: entry.dist.version for entry in entries if entry and entry.dist}
    ours = {package: version(package) for package in ("attune-lab", "numpy", "scipy")}
    return {"python": platform.python_version(), **ours, **theirs}


def digest_of(path: str) -> str:
    """SHA-256 of a file that an option names.

    Raises:
        UserError: no regular file there, or an empty or huge one.
    """
    return hashlib.sha256(read_bytes(Path(path), "file for the tuner's option", _MAX_BYTES)).hexdigest()


def found_again(origin: Mapping[str, Any]) -> dict[str, str]:
    """The files that options named, by option, each the one that it was.

    Raises:
        UserError: one is gone, or is another one now.
    """
    for key, kept in origin["files"].items():
        try:
            now = digest_of(kept["path"])
        except UserError as error:
            raise UserError(f"option {key}: {error}, the one that the campaign was made with") from None
        if now != kept["sha256"]:
            raise UserError(f"option {key}: {kept['path']} changed since the campaign was made; put the old one back")
    return {key: kept["path"] for key, kept in origin["files"].items()}
