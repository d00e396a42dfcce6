"""Writing a file in one step, so that a kill or a full disk leaves the old file or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attune_lab.contracts import EnvironmentFault


def write_file(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; its folder is made when missing.

    Raises:
        EnvironmentFault: it cannot be written, or is a folder, a device or a pipe.
    """
    with _partial(path) as partial:
        partial.write_bytes(content)
        partial.replace(path)


def refuse_unwritable(path: Path) -> None:
    """Raise what `write_file` would raise, before the work whose result is to be written; makes the folder.

    Raises:
        EnvironmentFault: see `write_file`.
    """
    with _partial(path) as partial:
        partial.touch()


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to first; whatever has that name at the end is removed."""
    partial = path.parent / f"{path.name}.{os.getpid()}.partial"  # two processes may write the same file
    try:
        if path.exists() and not path.is_file():
            raise EnvironmentFault(f"cannot write {path}: it is no regular file; use another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}; free the disk or use another name") from error
