"""Writing a file in one step, so that a kill or a full disk leaves the old file or the new one."""

from __future__ import annotations

import os
from pathlib import Path

from attune_lab.contracts import EnvironmentFault


def write_file(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``; its folder is made when missing.

    Raises:
        EnvironmentFault: it cannot be written, or is a folder, a device or a pipe.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # two processes may write the same file
    try:
        if path.exists() and not path.is_file():
            raise EnvironmentFault(f"cannot write {path}: it is no regular file; use another --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}; free the disk or use another --out") from error
