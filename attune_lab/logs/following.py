"""A log that is still being written, read as it grows."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

from attune_lab.contracts import UserError
from attune_lab.logs.contract import LoggedStep
from attune_lab.logs.lines import BLOCK, open_log, refuse_binary
from attune_lab.logs.reading import LogReading

QUIET = 6
"""After so many pauses without a word, a log that has said its end is over."""


def follow(path: Path, reading: LogReading, seen: Callable[[LoggedStep], None], pause: Callable[[], None]) -> None:
    """Read a log until it has ended: training done or failed, and nothing more written.

    Args:
        path: the log, a regular file.
        reading: reads it; whoever interrupts has what was read so far.
        seen: called with the newest step after each read that brought one.
        pause: waits before the file is looked at again.

    Raises:
        UserError: as `attune_lab.logs.read_log`, or a compressed file.
    """
    quiet, newest = 0, None
    with open_log(path) as stream:
        if isinstance(stream, gzip.GzipFile):
            raise UserError(f"{path} is compressed and does not grow; read it without --follow")
        while not (reading.ended and quiet >= QUIET):
            block = stream.read(BLOCK)
            if block:
                quiet = 0
                if stream.tell() == len(block):
                    refuse_binary(block, path)
                reading.feed(block)
                step = reading.newest()
                if step is not None and step is not newest:
                    newest = step
                    seen(step)
                continue
            if os.fstat(stream.fileno()).st_size < stream.tell():  # emptied by a rotation: it starts anew
                stream.seek(0)
            quiet += 1
            pause()
