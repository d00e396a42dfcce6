"""A local HTTP server that speaks the Messages API: what a script says, with the service's checks, and with faults.

    def expert(body):  # the request, as JSON has it
        return Say([text("Let me look."), call("read", {"file": "train.sh"})])

    with messages_api(expert) as api:
        ...  # ANTHROPIC_BASE_URL = api.url; api.seen holds the requests, api.billed what they cost

A script is a function of the request's body, or a list of outcomes, the last again and again. `cassette` makes one
from a file, `faulty` puts faults into one.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from experiments.claude_offline.messages_rules import Json, refusal, signature, tokens, usage

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 409: "conflict_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    529: "overloaded_error",
}  # fmt: skip
PIECE = 4096
"""Characters of a text or of a tool's input in one event."""


def text(words: str) -> Json:
    """A block of text."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Json:
    """A signed block of thinking."""
    return {"type": "thinking", "thinking": words, "signature": signature(words)}


def call(tool: str, given: Any, name: str = "") -> Json:
    """A call of a tool with an input, or with any text in place of its JSON; ``name`` is its id, else made up."""
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


@dataclass(frozen=True)
class Say:
    """A message, whole or not.

    Attributes:
        content: its blocks.
        stop: why it ends; ``tool_use`` or ``end_turn`` if empty.
        cut: where the stream ends early: ``mid-block``, ``after-block`` or ``before-stop``.
        ends_in: what comes where it is cut: nothing, a ``reset`` of the connection, or an ``error`` of the service.
        pause_s: seconds before each event.
    """

    content: list[Json] = field(default_factory=list)
    stop: str = ""
    cut: str = ""
    ends_in: str = ""
    pause_s: float = 0.0


@dataclass(frozen=True)
class Fail:
    """An error of the service; ``drip_s`` seconds before each of its characters."""

    status: int
    retry_after: str = ""
    message: str = "as scripted"
    drip_s: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Any text in place of an answer."""

    text: str
    kind: str = "text/event-stream"


@dataclass(frozen=True)
class Reset:
    """The connection is reset in place of an answer."""


@dataclass(frozen=True)
class Silent:
    """Nothing comes until the client or the server gives up; or only pings, ``ping_s`` seconds apart."""

    ping_s: float = 0.0


Outcome: TypeAlias = Say | Fail | Raw | Reset | Silent
Script: TypeAlias = Callable[[Json], Outcome]


@dataclass
class Api:
    """The running server.

    Attributes:
        url: its address.
        seen: (headers, body) of each message asked for, those that were refused included.
        counted: bodies of which the tokens were counted.
        billed: usage of each message that was at least begun.
    """

    script: Script | list[Outcome]
    counts: bool | Outcome = True
    forcible: bool = True
    url: str = ""
    seen: list[tuple[dict[str, str], Json]] = field(default_factory=list)
    counted: list[Json] = field(default_factory=list)
    billed: list[dict[str, int]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    cache: set[str] = field(default_factory=set)
    paused: list[list[Json]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def outcome(self, body: Json) -> Outcome:
        """What the script makes of a request; its own exceptions are raised when the server is left."""
        try:
            if callable(self.script):
                return self.script(body)
            return self.script[min(len(self.seen), len(self.script)) - 1]
        except Exception as error:
            self.faults.append(error)
            return Fail(400, message=f"the script failed: {error!r}")

    @property
    def billed_tokens(self) -> tuple[int, int]:
        """(input, output) in all."""
        return (
            sum(sum(row.values()) - row["output_tokens"] for row in self.billed),
            sum(row["output_tokens"] for row in self.billed),
        )


@contextmanager
def messages_api(
    script: Script | list[Outcome], *, counts: bool | Outcome = True, forcible: bool = True
) -> Iterator[Api]:
    """The server.

    ``counts``: whether it counts tokens, or what comes in place of a count; ``forcible``: whether the model can be
    forced to call a tool.

    What went wrong in the script is raised at the end.
    """
    api = Api(script, counts, forcible)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield api
    finally:
        api.over.set()
        server.shutdown()
        server.server_close()
    if api.faults:
        raise api.faults[0]


def cassette(path: Path) -> Script:
    """The script that a file holds: ``{"answers": [{"content": […], "stop_reason": "…"}, …]}``, one a turn.

    Which one is played follows from how often the model has spoken, so that a repeated request gets the same again.
    """
    answers = json.loads(path.read_text())["answers"]

    def script(body: Json) -> Outcome:
        turn = turns(body)
        if turn >= len(answers):
            raise AssertionError(f"{path.name} has {len(answers)} answers, and another is asked for")
        return Say(answers[turn]["content"], answers[turn]["stop_reason"])

    return script


def faulty(script: Script, faults: Mapping[int, Outcome]) -> Script:
    """``script``, but the requests numbered (from 1) in ``faults`` get what is there, and may be put again."""
    count = iter(range(1, 10**6))

    def disturbed(body: Json) -> Outcome:
        fault = faults.get(next(count))
        return fault if fault is not None else script(body)

    return disturbed


def turns(body: Json) -> int:
    """How often the model has spoken in a request."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def events(say: Say, started: dict[str, int], first_id: int) -> tuple[list[Json], int]:
    """The events of a message, and its output tokens."""
    content = _named(say.content, first_id)
    stop = say.stop or ("tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn")
    output = max(sum(map(tokens, content)), 1)
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "local", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": {**started, "output_tokens": 1}}  # fmt: skip
    rows: list[Json] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(content):
        empty, deltas = _pieces(block)
        rows.append({"type": "content_block_start", "index": index, "content_block": empty})
        rows += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        rows.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None}
    rows.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}})
    rows.append({"type": "message_stop"})
    ends = {"mid-block": "content_block_delta", "after-block": "content_block_stop", "before-stop": "message_delta"}
    if say.cut:
        kinds = [row["type"] for row in rows]
        rows = rows[: kinds.index(ends[say.cut]) + 1]
    return rows, output


def sse(row: Json) -> bytes:
    """An event on the wire."""
    return f"event: {row['type']}\ndata: {json.dumps(row)}\n\n".encode()


def _named(content: list[Json], first_id: int) -> list[Json]:
    """The blocks, with ids where calls have none; they follow from the request, so a repeated one gets the same."""
    ids = iter(range(first_id, 10**6))
    return [{**block, "id": f"toolu_{next(ids)}"} if block.get("id") == "" else dict(block) for block in content]


def _pieces(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and the deltas that complete it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": part} for part in _parts(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _parts(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
    if block["type"] == "tool_use":
        given = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *_parts(given)]]
        return {**block, "input": {}}, deltas
    return block, []


def _parts(words: str) -> list[str]:
    return [words[start : start + PIECE] for start in range(0, len(words), PIECE)]


class _Handler(BaseHTTPRequestHandler):
    """One request. Answers end with the connection, so a stream that is cut looks like one that is complete."""

    api: Api

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        try:
            self._answer(json.loads(data))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, body: Json) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        counting = self.path.startswith("/v1/messages/count_tokens")
        with self.api.lock:
            if counting:
                self.api.counted.append(body)
            else:
                self.api.seen.append((headers, body))
            outcome = self._refused(headers, body, counting)
            if outcome is None and counting:
                started = usage(body, set())
                self._send(200, "application/json", json.dumps({"input_tokens": sum(started.values())}))
                return
            outcome = outcome or self.api.outcome(body)
        answers: dict[type, Callable[[Any, Json], None]] = {
            Say: self._say, Fail: self._fail, Raw: self._raw, Reset: self._reset, Silent: self._silent
        }  # fmt: skip
        answers[type(outcome)](outcome, body)

    def _refused(self, headers: Mapping[str, str], body: Json, counting: bool) -> Outcome | None:
        if not (headers.get("x-api-key") or headers.get("authorization")):
            return Fail(401, message="x-api-key header is required")
        if "anthropic-version" not in headers:
            return Fail(400, message="anthropic-version: header is required")
        if not self.path.startswith("/v1/messages") or (counting and self.api.counts is False):
            return Fail(404, message=f"no such path: {self.path}")
        if counting and not isinstance(self.api.counts, bool):
            return self.api.counts
        paused = body.get("messages", [{}])[-1].get("content") in self.api.paused
        why = refusal(body, counting=counting, forcible=self.api.forcible, paused=paused)
        return Fail(400, message=why) if why else None

    def _say(self, say: Say, body: Json) -> None:
        ids = json.dumps(body["messages"]).count('"type": "tool_use"') + 1
        with self.api.lock:
            started = usage(body, self.api.cache)
        rows, output = events(say, started, ids)
        if say.stop == "pause_turn":
            self.api.paused.append(_named(say.content, ids))
        bill = {**started, "output_tokens": output}
        self.api.billed.append(bill)
        if not body.get("stream"):
            whole = {**rows[0]["message"], "content": _named(say.content, ids), "usage": bill}
            self._send(200, "application/json", json.dumps({**whole, "stop_reason": rows[-2]["delta"]["stop_reason"]}))
            return
        self._send(200, "text/event-stream")
        for row in rows:
            if say.pause_s and self.api.over.wait(say.pause_s):
                return
            self.wfile.write(sse(row))
        if say.ends_in == "error":
            self.wfile.write(sse(_error("overloaded_error", "as scripted")))
        if say.ends_in == "reset":
            self._reset(say, body)

    def _fail(self, fail: Fail, body: Json) -> None:
        after = {"retry-after": fail.retry_after} if fail.retry_after else {}
        kind = KINDS.get(fail.status, "api_error")
        words = json.dumps(_error(kind, fail.message))
        self._send(fail.status, "application/json", "" if fail.drip_s else words, after)
        while fail.drip_s and words and not self.api.over.wait(fail.drip_s):
            self.wfile.write(words[0].encode())
            words = words[1:]

    def _raw(self, raw: Raw, body: Json) -> None:
        self._send(200, raw.kind, raw.text)

    def _reset(self, _: object, body: Json) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _silent(self, silent: Silent, body: Json) -> None:
        self._send(200, "text/event-stream")
        while not self.api.over.wait(silent.ping_s or None):
            self.wfile.write(sse({"type": "ping"}))

    def _send(self, status: int, kind: str, words: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(words.encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def _error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}}
