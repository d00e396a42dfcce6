"""Text files from users, refused in one sentence when they are none."""

from __future__ import annotations

import stat
from pathlib import Path

from attune_lab.contracts import UserError

_MAX_BYTES = 5_000_000


def read_text(path: Path) -> str:
    """A text file, line ends kept.

    Raises:
        UserError: missing, a folder, unreadable, empty, larger than 5 MB, or not UTF-8 text.
    """
    data = read_bytes(path, "recipe file", _MAX_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UserError(f"{path} is a binary file or not UTF-8 text; give a launch script or a YAML recipe")
    return text


def read_bytes(path: Path, what: str, limit: int) -> bytes:
    """The content of a regular file. Anything else is refused unopened: a pipe could block, a device never ends.

    Args:
        path: the file.
        what: what it should be, for print.
        limit: bytes it may have.

    Raises:
        UserError: missing, no regular file, unreadable, larger than ``limit``, or blank.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder; give the {what} in it")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is a device or a pipe; give a regular {what}")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a {what}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
    if len(data) > limit:
        raise UserError(f"{path} is larger than {limit // 1_000_000} MB, too large for a {what}")
    if not data.strip():
        raise UserError(f"{path} is empty; give a {what}")
    return data
