"""The lines of a transcript: what each kind holds, and the chain that holds them together."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter

from attune_lab.llm import Reply
from attune_lab.llm.allowance import Allowance, Spent
from attune_lab.llm.chat import Answer, Turn
from attune_lab.llm.secret import concealed

Count = Annotated[int, Field(ge=0)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Object = InstanceOf[dict[Any, Any]]
Text = InstanceOf[str]
"""Lone surrogates too, as a log read byte by byte may have them."""


class Line(BaseModel):
    """What every line is: strict, and whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Bill(Line):
    """A line about what was used; ``usd`` is None where the price is not known."""

    digest: str
    input_tokens: Count = 0
    output_tokens: Count = 0
    usd: Usd | None = None

    @property
    def spent(self) -> Spent:
        """The tokens and dollars."""
        return Spent(self.input_tokens, self.output_tokens, math.nan if self.usd is None else self.usd)


class Opening(Line):
    """What a conversation is held with, once in a file."""

    kind: Literal["opening"] = "opening"
    llm: Text
    system: Text
    tools: list[Object]
    sha256_of_tools: str


class Asked(Bill):
    """A request, or a turn as far as it is new, written before it is sent; the bill is the most it could be.

    Attributes:
        request: of a `Request`, its fields.
        messages: of a `Turn`, those after the first ``keeps``, which are those of the turn before and its answer.
    """

    kind: Literal["asked"] = "asked"
    llm: Text
    request: Object | None = None
    keeps: Count = 0
    messages: list[Object] = []
    max_tokens: Count = 0


class Replied(Bill):
    """The reply to a request; ``error`` is why none was usable."""

    kind: Literal["replied"] = "replied"
    body: Object
    estimated: bool = False
    error: Text | None = None

    @property
    def reply(self) -> Reply:
        """The reply, with an empty body where there is an ``error``."""
        return Reply(self.body, estimated=self.estimated, **vars(self.spent))


class Answered(Bill):
    """The answer to a turn."""

    kind: Literal["answered"] = "answered"
    content: list[Object]
    stop_reason: str

    @property
    def answer(self) -> Answer:
        """The answer."""
        return Answer(tuple(self.content), self.stop_reason, **vars(self.spent))


class Lost(Bill):
    """What attempts used that brought no answer."""

    kind: Literal["lost"] = "lost"


class Refused(Line):
    """A question that was not sent, since it could overshoot the ceiling of that time."""

    kind: Literal["refused"] = "refused"
    digest: str
    tokens: Count
    usd: Usd
    error: Text

    def under(self, allowance: Allowance) -> bool:
        """Whether the ceiling is still the same."""
        return (self.tokens, self.usd) == (allowance.tokens, allowance.usd)


AnyLine = Opening | Asked | Replied | Answered | Lost | Refused
_LINE: TypeAdapter[AnyLine] = TypeAdapter(Annotated[AnyLine, Field(discriminator="kind")])

START = "0" * 64
"""What the first line is chained to."""

_HEAD, _NECK = b'{"sha256": "', b'", '
_REST = len(_HEAD) + len(START) + len(_NECK)


class BrokenChain(Exception):
    """A line is not the one that was written there."""


def chained(line: AnyLine, before: str) -> tuple[bytes, str]:
    """The bytes of a line without its end, and its own link: the SHA-256 of the link before it and of the rest."""
    rest = concealed(json.dumps(vars(line), allow_nan=False)).encode()[1:]
    link = _link(before, rest)
    return _HEAD + link.encode() + _NECK + rest, link


def unchained(data: bytes, before: str) -> tuple[AnyLine, str]:
    """The line and its link.

    Raises:
        BrokenChain: it, or one before it, was edited, dropped or moved.
        ValueError: it is no line of a transcript.
    """
    if not data.startswith(_HEAD):
        raise ValueError("it has no link")
    if not fits(data, before):
        raise BrokenChain
    rest = data[_REST:]
    return _LINE.validate_python(json.loads(b"{" + rest)), _link(before, rest)


def fits(data: bytes, before: str) -> bool:
    """Whether a line is whole, as it was written, and in its place."""
    return data[:_REST] == _HEAD + _link(before, data[_REST:]).encode() + _NECK


def begun(data: bytes) -> bool:
    """Whether it may be the beginning of a line of a transcript."""
    return data[: len(_HEAD)] == _HEAD[: len(data)]


def _link(before: str, rest: bytes) -> str:
    return hashlib.sha256(before.encode() + rest).hexdigest()


def bill(digest: str, spent: Spent) -> dict[str, Any]:
    """The fields of a `Bill`."""
    return {"digest": digest, **vars(spent), "usd": None if math.isnan(spent.usd) else spent.usd}


def opening_of(llm: str, turn: Turn) -> Opening:
    """What ``turn`` is held with."""
    tools = [vars(tool) for tool in turn.tools]
    text = json.dumps(tools, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Opening(llm=llm, system=turn.system, tools=json.loads(text), sha256_of_tools=digest)


def drift(opening: Opening, now: Opening) -> str:
    """What differs between two openings, empty if nothing does."""
    if opening.llm != now.llm:
        return f"it is held with {now.llm}, not {opening.llm}"
    if opening.system != now.system:
        return "the system text is another"
    if opening.sha256_of_tools == now.sha256_of_tools:
        return ""
    before, after = _by_name(opening), _by_name(now)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"the schema of {', '.join(names)} is another" if names else "the tools are in another order"


def _by_name(opening: Opening) -> Mapping[str, Any]:
    return {str(tool.get("name")): tool for tool in opening.tools}
