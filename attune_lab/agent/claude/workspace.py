"""The files a model sees: a tree of named documents, looked up by name, so that no path can lead out of it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Document(Protocol):
    """Something that can be read in pieces."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def read(self, offset: int, limit: int) -> str:
        """At most ``limit`` bytes from ``offset``, as text."""
        ...


@dataclass(frozen=True)
class Text:
    """A document in memory."""

    content: str

    @property
    def size(self) -> int:
        """Bytes of it in UTF-8."""
        return len(self.content.encode())

    def read(self, offset: int, limit: int) -> str:
        """See `Document.read`; a character cut at either end is left out."""
        return self.content.encode()[offset : offset + limit].decode("utf-8", "ignore")


@dataclass(frozen=True)
class LogFile:
    """A log on the disk, opened anew for every piece and never followed through a link."""

    path: Path

    @property
    def size(self) -> int:
        """Bytes; 0 where it is gone."""
        try:
            return self.path.lstat().st_size
        except OSError:
            return 0

    def read(self, offset: int, limit: int) -> str:
        """See `Document.read`; what is no text is shown as U+FFFD. Empty where the file is gone."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ""
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            file.seek(offset)
            return printable(file.read(limit).decode("utf-8", "replace"))


def log_of(path: str | None, folder: Path) -> LogFile | None:
    """The log of a run whose report names ``path``: the regular file of that name in ``folder/logs``; else None.

    Only the name counts, so that a campaign that was moved still has its logs, and no report names another file.
    """
    if not path:
        return None
    log = folder / "logs" / Path(path).name
    try:
        inside = log.resolve(strict=True).is_relative_to(folder.resolve())
        is_file = stat.S_ISREG(log.lstat().st_mode)
    except (OSError, RuntimeError, ValueError):
        return None
    return LogFile(log) if inside and is_file else None


def printable(text: str) -> str:
    """``text`` with all but printable characters, tabs and line ends replaced by U+FFFD."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
