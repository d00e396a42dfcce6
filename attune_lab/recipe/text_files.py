"""Text files from users, refused in one sentence when they are none."""

from __future__ import annotations

from pathlib import Path

from attune_lab.contracts import UserError

_MAX_BYTES = 5_000_000


def read_text(path: Path) -> str:
    """A text file, line ends kept.

    Raises:
        UserError: missing, a folder, unreadable, empty, larger than 5 MB, or not UTF-8 text.
    """
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the recipe file in it")
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES // 1_000_000} MB; a recipe is a small text file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
    if not data.strip():
        raise UserError(f"{path} is empty; give a recipe file")
    if len(data) > _MAX_BYTES:
        raise UserError(f"{path} is larger than {_MAX_BYTES // 1_000_000} MB; a recipe is a small text file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UserError(f"{path} is not UTF-8 text; give a launch script or a YAML recipe")
    return text
