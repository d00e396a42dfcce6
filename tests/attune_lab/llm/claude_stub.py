"""A local HTTP server that speaks the streaming Messages API as scripted: one answer a request, the last again."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 1000, "output_tokens": 1}


def events(*, tool_json=None, text=None, stop="tool_use"):
    """The stream of a message with one tool call or one text; without ``stop`` it is cut after the block."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stub", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": USAGE}  # fmt: skip
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": text}
    if tool_json is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": "reply", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": tool_json}
    rows = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
    ]
    if stop:
        rows.append({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None},
                     "usage": {"output_tokens": 20}})  # fmt: skip
        rows.append({"type": "message_stop"})
    return 200, {}, "".join(f"event: {row['type']}\ndata: {json.dumps(row)}\n\n" for row in rows)


def good(body):
    return events(tool_json=json.dumps(body))


def refusal(status, kind, **headers):
    error = {"type": "error", "error": {"type": kind, "message": f"scripted {kind}"}}
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(error)


@contextmanager
def stub(*answers):
    """Its address, and the requests it got: [(headers, body)]. An answer may be a function of the request's body."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
            answer = answers[min(len(seen), len(answers)) - 1]
            status, headers, text = answer(body) if callable(answer) else answer
            self.send_response(status)
            kind = "text/event-stream" if text.startswith("event:") else "application/json"
            for name, value in {"content-type": kind, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
