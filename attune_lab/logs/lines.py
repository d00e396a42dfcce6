"""The lines of a log of any size and any content, in bounded memory."""

from __future__ import annotations

import gzip
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from attune_lab.contracts import UserError

MAX_LINE = 1 << 14
"""So many characters of a line are kept; nothing that is read stands further in."""

MAX_EXPANDED = 2 * 10**9
"""So many bytes of a compressed log are read: a small file can expand without end."""

BLOCK = 1 << 17
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n\r]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PREFIX = re.compile(r"\s*(\d{1,6}): |\[(rank|default)(\d{1,6})\]:\s?", re.ASCII)
_TEXT_CONTROLS = b"\t\n\r\x08\x0c\x1b\0"


class Line(NamedTuple):
    """One line, or one state of a progress bar that redraws itself with carriage returns.

    Attributes:
        number: of the line in the file, from 1.
        rank: who printed it, where a launcher says so (``3: ``, ``[rank3]:``, ``[default3]:``).
        text: without that prefix, terminal colours and NULs.
        whole: a line end follows; else the file may have been cut off within it.
    """

    number: int
    rank: int | None
    text: str
    whole: bool = True


class Splitter:
    """Lines from blocks of bytes, as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._ended = 0
        self.cut = False
        """Some line was too long to be kept whole."""

    def split(self, block: bytes) -> tuple[str, list[Line]]:
        """The text that ``block`` completes, and its lines."""
        data = self._rest + block
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._keep(data[end:])
        text = _clean(data[:end])
        *ended, bars = text.split("\n")
        lines = [line for number, part in enumerate(ended, self._ended + 1) for line in self._states(part, number)]
        self._ended += len(ended)
        return text, lines + self._states(bars, self._ended + 1)

    def last(self) -> tuple[str, list[Line]]:
        """What stands after the last line end."""
        text = _clean(self._rest)
        return text, [line._replace(whole=False) for line in self._states(text, self._ended + 1)]

    def _keep(self, rest: bytes) -> None:
        self.cut |= len(rest) > MAX_LINE
        self._rest = rest[:MAX_LINE]

    def _states(self, part: str, number: int) -> list[Line]:
        """The states of a progress bar, or the one line."""
        self.cut |= len(part) > MAX_LINE and "\r" not in part
        return [_line(state[:MAX_LINE], number) for state in part.split("\r") if state]


def _clean(data: bytes) -> str:
    """Text without terminal sequences and NULs."""
    text = data.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return text.replace("\0", "")


def _line(text: str, number: int) -> Line:
    rank = None
    for _ in range(3):  # srun, torchrun and torch may each put one before it
        prefix = _PREFIX.match(text)
        if not prefix:
            break
        if rank is None or prefix[2] != "default":  # which counts within a node
            rank = int(prefix[1] or prefix[3])
        text = text[prefix.end() :]
    return Line(number, rank, text)


def blocks(path: Path, remarks: list[str]) -> Iterator[bytes]:
    """The content of a log in blocks, a ``.gz`` expanded; what could not be read is said in ``remarks``.

    Raises:
        UserError: missing, no regular file (a pipe could block, a device never ends), unreadable, or no text.
    """
    with open_log(path) as stream:
        expanded, first = 0, True
        while block := _next(stream, path, remarks, first=first):
            if first:
                refuse_binary(block, path)
                first = False
            yield block
            expanded += len(block)
            if isinstance(stream, gzip.GzipFile) and expanded >= MAX_EXPANDED:
                remarks.append(f"the compressed log is read up to {MAX_EXPANDED // 10**9} GB of its text, not further")
                return


def open_log(path: Path) -> BinaryIO:
    """The file, opened; a ``.gz`` reads as its text.

    Raises:
        UserError: missing, a folder, a device, a pipe, or not to be read.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder; give the log in it")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is a device or a pipe; give a regular file")
        return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a training log") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read ({reason}); check the path and its permissions") from None


def refuse_binary(block: bytes, path: Path) -> None:
    """Raises UserError where the first block of a file is no text.

    Stray bytes and long runs of NULs, which a rotated or a damaged log has, are put up with.
    """
    said = block.replace(b"\0", b"")
    controls = sum(said.count(byte) for byte in range(32) if byte not in _TEXT_CONTROLS)
    invalid = said.decode("utf-8", errors="replace").count("\ufffd")
    if controls > len(said) / 20 or invalid > len(said) / 4:
        raise UserError(f"{path} is a binary file; give a training log as text, or as text packed with gzip (.gz)")


def _next(stream: BinaryIO, path: Path, remarks: list[str], *, first: bool) -> bytes:
    """The next block; empty at the end, also where a compressed file breaks off."""
    try:
        return stream.read(BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if first:
            raise UserError(f"{path} is no gzip file ({error}); give the log itself") from None
        remarks.append("the compressed log is damaged or cut off; it is read up to there")
        return b""
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the disk it is on") from None
