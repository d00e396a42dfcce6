"""What was asked and answered, kept so that a campaign resumes and replays without asking again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import Request, lines
from attune_lab.llm.allowance import Spent
from attune_lab.llm.chat import Turn
from attune_lab.llm.lines import Answered, AnyLine, Asked, Bill, Lost, Opening, Refused, Replied


@dataclass(frozen=True)
class Exchange:
    """The fields of one `Request`, and the body of the reply."""

    request: Mapping[str, Any]
    body: Mapping[str, Any]


class Drifted(UserError):
    """Model, instructions or tools are not those that a conversation was held with."""


class Transcript:
    """Questions and answers by the digest of the question, in memory, and as JSON lines in a file where one is given.

    Every line carries a SHA-256 over itself and the line before, and is on the disk before the answer is used. Of a
    conversation only what is new in a turn is written. A line that a kill cut off at the end of the file is removed.
    One campaign writes to a file at a time; only its owner may read it.

    Args:
        path: the file; None for memory alone.
        writable: whether lines are added to the file.

    Attributes:
        billed: what all of it used, as the service said.
        unknown: the most that questions could use which a kill left without an answer.
        head: the link of the last line of the file: what a campaign may keep to know the whole file by.

    Raises:
        UserError: a file that is no transcript, or that was edited, then with the line; or that something else writes.
        EnvironmentFault: it cannot be read or written.
    """

    def __init__(self, path: Path | None = None, *, writable: bool = True) -> None:
        self.path, self._writable = path, writable
        self.billed, self.unknown, self.head = Spent(), Spent(), lines.START
        self._asked: dict[str, Asked] = {}
        self._outcomes: dict[str, Replied | Answered | Refused] = {}
        self._pending = Spent()
        self._opening: Opening | None = None
        self._history: list[Any] = []
        self._size = 0
        if path is None:
            return
        try:
            self._load(path)
        except OSError as error:
            raise EnvironmentFault(f"cannot read {path}: {error.strerror}; name another transcript") from error
        self._settle(Spent())

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Exchange]:
        for digest, asked in self._asked.items():
            outcome = self._outcomes.get(digest)
            if asked.request is not None and isinstance(outcome, Replied):
                yield Exchange(asked.request, outcome.body)

    @property
    def where(self) -> str:
        """What to call it in a message."""
        return "the transcript" if self.path is None else str(self.path)

    def outcome(self, digest: str) -> Replied | Answered | Refused | None:
        """What came of a question, or None."""
        return self._outcomes.get(digest)

    def parting(self, number: int, messages: Sequence[Mapping[str, Any]]) -> str:
        """Where the ``number``-th turn of a conversation, with these messages, leaves what is recorded."""
        turns = [asked for asked in self._asked.values() if asked.request is None]
        if number > len(turns):
            return f"turn {number}: {len(turns)} are recorded"
        recorded: list[Any] = []
        for asked in turns[:number]:
            recorded[asked.keeps :] = asked.messages
            outcome = self._outcomes.get(asked.digest)
            if asked is not turns[number - 1] and isinstance(outcome, Answered):
                recorded.append(_spoken(outcome))
        place = _shared(recorded, json.loads(json.dumps(messages)))
        if place == len(recorded) == len(messages):
            return f"turn {number}: its answer is not recorded"
        return f"turn {number}: message {place + 1} of it is another"

    def ask(self, digest: str, llm: str, question: Request | Turn, most: Spent) -> None:
        """Note that a question is about to be sent that uses ``most`` at most."""
        if isinstance(question, Request):
            self._add(Asked(llm=llm, request=dict(vars(question)), **lines.bill(digest, most)))
            return
        messages = json.loads(json.dumps(question.messages))
        keeps = _shared(self._history, messages)
        kept = {"keeps": keeps, "messages": messages[keeps:], "max_tokens": question.max_tokens}
        self._add(Asked(llm=llm, **kept, **lines.bill(digest, most)))

    def close(self, outcome: Replied | Answered | Refused | Lost) -> None:
        """Note what came of it; on return it is on the disk."""
        self._add(outcome)

    def held_with(self, llm: str, turn: Turn) -> None:
        """Note model, instructions and tools of a conversation, or check that they are those noted.

        Raises:
            Drifted: they are not.
        """
        now = lines.opening_of(llm, turn)
        if self._opening is None:
            if self._writable:
                self._add(now)
        elif what := lines.drift(self._opening, now):
            raise Drifted(
                f"this conversation is not the one in {self.where}: {what}; use the version that wrote it, or begin "
                "a new campaign"
            )

    def _take(self, line: AnyLine) -> None:
        """Bring what is known up to a line."""
        if isinstance(line, Opening):
            self._opening = line
        elif isinstance(line, Asked):
            self._settle(line.spent)
            self._asked.setdefault(line.digest, line)
            if line.request is None:
                self._history[line.keeps :] = line.messages
        else:
            self._pending = Spent()
            if not isinstance(line, Lost):
                self._outcomes[line.digest] = line
            if isinstance(line, Answered):
                self._history.append(_spoken(line))
            if isinstance(line, Bill):
                self.billed += line.spent

    def _settle(self, pending: Spent) -> None:
        """Give up the question that is open, and wait for the answer to another that may use ``pending``."""
        self.unknown += self._pending
        self._pending = pending

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        if not path.is_file():  # a pipe could block, a device never ends, or keeps nothing
            raise UserError(f"{path} is no regular file; name another transcript")
        data = b""
        with path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                ours = self._size > 0 or lines.begun(data)  # of somebody else's file nothing is removed
                if ours and not data.endswith(b"\n") and not lines.fits(data, self.head):
                    break
                self._read(data.removesuffix(b"\n"), f"{self.where}, line {number}")
                self._size += len(data)
        if self._writable and self._size < path.stat().st_size:
            os.truncate(path, self._size)
        elif self._writable and data and not data.endswith(b"\n"):
            self._append(path, b"\n")

    def _read(self, data: bytes, where: str) -> None:
        try:
            line, self.head = lines.unchained(data, self.head)
        except lines.BrokenChain as error:
            raise UserError(
                f"{where}: this or an earlier line was edited, dropped or moved; restore the file"
            ) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{where}: no line of a transcript; name another transcript") from error
        self._take(line)

    def _add(self, line: AnyLine) -> None:
        if self.path is not None and self._writable:
            data, head = lines.chained(line, self.head)
            try:
                self._append(self.path, data + b"\n")
            except OSError as error:
                raise EnvironmentFault(f"cannot write {self.path}: {error.strerror}; free the disk") from error
            self.head = head
        self._take(line)

    def _append(self, path: Path, data: bytes) -> None:
        """Write and wait until it is on the disk; a new file belongs to its owner alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            if os.fstat(descriptor).st_size != self._size:
                raise UserError(f"{path} was changed by something else; give every campaign a transcript of its own")
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        self._size += len(data)
        if new:
            _sync(path.parent)


def _spoken(answered: Answered) -> dict[str, Any]:
    """An answer as a message of the next turn."""
    return {"role": "assistant", "content": answered.content}


def _shared(history: list[Any], messages: list[Any]) -> int:
    """How many messages at the beginning are the same."""
    for place, (before, now) in enumerate(zip(history, messages, strict=False)):
        if before != now:
            return place
    return min(len(history), len(messages))


def _sync(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
