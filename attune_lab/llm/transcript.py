"""What was asked and answered, kept so that a campaign resumes and replays without asking again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import LLM, Reply, Request, UnusableReply
from attune_lab.llm.schema import problems


class Exchange(BaseModel):
    """One question and its outcome, a line of a transcript.

    ``usd`` is None where the price is not known; ``error`` is why no reply was usable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    llm: str
    request: dict[str, Any]
    body: dict[str, Any] = {}
    input_tokens: int = Field(0, ge=0)
    output_tokens: int = Field(0, ge=0)
    usd: float | None = Field(None, ge=0, allow_inf_nan=False)
    estimated: bool = False
    error: str | None = None

    @property
    def reply(self) -> Reply:
        """The reply, with an empty body where there is an ``error``."""
        usd = math.nan if self.usd is None else self.usd
        return Reply(self.body, self.input_tokens, self.output_tokens, usd, self.estimated)

    @classmethod
    def of(cls, llm: str, request: Request, reply: Reply, error: str | None = None) -> Exchange:
        """The exchange in which ``llm`` answered ``request`` by ``reply``."""
        usd = None if math.isnan(reply.usd) else reply.usd
        return cls(llm=llm, request=dict(vars(request)), error=error, **{**vars(reply), "usd": usd})


class Transcript:
    """Exchanges by the digest of their request, in memory, and as JSON lines in a file where one is given.

    A line that a kill cut off at the end of the file is removed. One campaign writes to a file at a time.

    Raises:
        UserError: a file whose lines are no exchanges.
        EnvironmentFault: it cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._exchanges: dict[str, Exchange] = {}
        if path is None:
            return
        try:
            _repair(path)
            for number, line in _lines(path):
                exchange = _read(line, f"{path}, line {number}")
                self._exchanges[Request(**exchange.request).digest(exchange.llm)] = exchange
        except OSError as error:
            raise EnvironmentFault(f"cannot read {path}: {error.strerror}; name another transcript") from error

    def __len__(self) -> int:
        return len(self._exchanges)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._exchanges.values())

    def get(self, digest: str) -> Exchange | None:
        """The exchange about a request, or None."""
        return self._exchanges.get(digest)

    def add(self, digest: str, exchange: Exchange) -> None:
        """Keep the exchange about a request; on return it is on the disk."""
        self._exchanges[digest] = exchange
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(json.dumps(exchange.model_dump()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EnvironmentFault(f"cannot write {self._path}: {error.strerror}; free the disk") from error


class RecordedLLM:
    """A model whose answers are kept: asked the same again, it repeats itself without the model being called.

    Args:
        name: of the model.
        connect: makes the model; called at once when nothing is recorded yet, so that bad settings are refused
            before anything is spent, else when the transcript has no answer.
        transcript: where exchanges are kept.
    """

    def __init__(self, name: str, connect: Callable[[], LLM], transcript: Transcript) -> None:
        self.name = name
        self._connect, self._transcript = connect, transcript
        self._llm = None if len(transcript) else connect()

    def complete(self, request: Request) -> Reply:
        """The recorded reply, or else the model's own, recorded.

        Raises:
            UserError: the recorded reply does not fit the schema: the file was edited.
            UnusableReply, EnvironmentFault: as the model does.
        """
        digest = request.digest(self.name)
        exchange = self._transcript.get(digest)
        if exchange is None:
            exchange = self._ask(request)
            self._transcript.add(digest, exchange)
        if exchange.error is not None:
            raise UnusableReply(exchange.error, exchange.reply)
        if faults := problems(exchange.body, request.schema):
            raise UserError(f"a recorded reply of {request.role} was edited ({faults[0]}); name another transcript")
        return exchange.reply

    def _ask(self, request: Request) -> Exchange:
        self._llm = self._llm or self._connect()
        try:
            return Exchange.of(self.name, request, self._llm.complete(request))
        except UnusableReply as unusable:
            return Exchange.of(self.name, request, unusable.spent, error=str(unusable))


def _repair(path: Path) -> None:
    """Cut off what follows the last full line."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.exists():
        yield from enumerate(path.read_bytes().splitlines(), start=1)


def _read(line: bytes, where: str) -> Exchange:
    try:
        exchange = Exchange.model_validate(json.loads(line))
        Request(**exchange.request)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: no exchange with a language model; name another transcript") from error
    return exchange
