"""The Messages API through the anthropic SDK: one message, within a deadline of our own and a ceiling on its cost."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm.allowance import Allowance, Spent, bound
from attune_lab.llm.chat import Answer, Turn
from attune_lab.llm.prices import price_of
from attune_lab.llm.secret import concealed
from attune_lab.llm.stream import Draft, NotInFormat
from attune_lab.llm.tokens import estimated_input, most_input

if TYPE_CHECKING:
    import anthropic
    import httpx2

Sent = TypeVar("Sent")

DEFAULT_MODEL = "claude-opus-5"

EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""How hard a model may be told to think. **Source:** OutputConfigParam of anthropic 2.14."""

DEADLINE_S = 180.0
"""Seconds a message may take, further attempts and waiting included. The service's retry-after has no upper limit."""

SILENCE_S = 120.0
"""Seconds of silence after which an attempt is given up. A model may think so long without a word."""

MAX_WAIT_S = 8.0
"""Longest wait between attempts when the service names none."""

MAX_ATTEMPTS = 6
"""Attempts at one message; each may cost tokens."""

FIRST_ATTEMPTS = 2
"""Attempts at the one request that tries the key and the address."""

MAX_BYTES = 32 * 2**20
"""Bytes of one reply over the wire; 128 thousand tokens, the longest output of a model, stay below it."""

MAX_SAID = 300
"""Characters of the service's own error message that are shown."""

_LOGGER = logging.getLogger(__name__)

_CACHED = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True)
class Count:
    """Input tokens of a turn; ``estimated`` from its length where the service does not count."""

    tokens: int
    estimated: bool


class Service:
    """Sends turns to Claude; the key comes from ``ANTHROPIC_API_KEY``, the address from ``ANTHROPIC_BASE_URL``.

    Answers are streamed, so that the deadline can be kept. Waits between attempts have no random part: the same
    faults give the same waits.

    Args:
        model: name of the model.
        effort: one of `EFFORTS`; the model's default if empty.
        allowance: ceiling over this and other models; unlimited if None.
        base_url: of the service; the SDK's default if None.
        deadline_s: seconds a message may take in all.
        clock, sleep: seconds since some moment, and waiting; replaced in tests.

    Raises:
        UserError: the package or the key is missing, an address that is none, or an effort that there is not.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        effort: str = "",
        allowance: Allowance | None = None,
        base_url: str | None = None,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise UserError(
                "asking Claude needs the anthropic package: pip install 'attune-lab[agent]', "
                "in a checkout pip install -e '.[agent]'"
            ) from error
        if effort and effort not in EFFORTS:
            raise UserError(f"there is no effort {effort!r}; give one of {', '.join(EFFORTS)}")
        self._sdk, self.model, self._effort, self._deadline_s = anthropic, model, effort, deadline_s
        self.allowance = Allowance() if allowance is None else allowance
        self._clock, self._sleep = clock, sleep
        self._end, self._forcible = 0.0, True
        self._client = self._open(base_url)
        key = self._client.api_key or self._client.auth_token or ""
        if not key.isprintable():
            raise UserError("ANTHROPIC_API_KEY has a line end or another character that no key has; set it anew")
        if not key:
            raise UserError(
                "asking Claude needs a key: set ANTHROPIC_API_KEY; without one the attune tuner has --policy catalog, "
                "and tuners with an option llm have --option llm=scripted"
            )

    def _open(self, base_url: str | None) -> anthropic.Anthropic:
        import httpx2

        http = self._sdk.DefaultHttpxClient(event_hooks={"response": [self._watch]})
        try:
            client = self._sdk.Anthropic(base_url=base_url, max_retries=0, http_client=http)
            usable = client.base_url.scheme in ("http", "https") and bool(client.base_url.host)
        except httpx2.InvalidURL:
            usable = False
        if not usable:
            raise UserError("ANTHROPIC_BASE_URL is no address: set it to one that begins with https://, or unset it")
        return client

    @property
    def _address(self) -> str:
        """Where the service is, without what the address may hold of secrets."""
        url = self._client.base_url
        return _shown(f"{url.scheme}://{url.netloc.decode(errors='replace')}")

    def deadline(self) -> float:
        """The moment at which a message asked for now is given up."""
        return self._clock() + self._deadline_s

    def send(self, turn: Turn, *, end: float, forced: str = "") -> Answer:
        """The answer, with the tokens of failed attempts; tried again while the service is busy, broken or silent.

        Args:
            turn: what is sent.
            end: moment at which it is given up, from `deadline`.
            forced: the tool that must be called, where the model can be forced; as it likes if empty. What is asked
                with it is asked once, so its messages are not written to the cache.

        Raises:
            AllowanceSpent: the next attempt could overshoot the ceiling.
            EnvironmentFault: no answer in time.
            UserError: the service refuses the key, the model or the request.
        """
        body, most = self._body(turn, forced), self._most(turn, end)
        before = self.allowance.spent

        def attempt() -> tuple[tuple[Mapping[str, Any], ...], str]:
            self.allowance.reserve(most)
            try:
                return self._receive(body, turn.max_tokens, end)
            except self._sdk.APIStatusError as error:
                if error.status_code != 400 or "tool_choice" not in body:
                    raise
            self._forcible = False  # models that always think cannot be forced
            del body["tool_choice"]
            return attempt()

        content, stop_reason = self._persist(attempt, end, MAX_ATTEMPTS)
        return Answer(content, stop_reason, **vars(self.allowance.spent - before))

    def try_once(self) -> None:
        """Return if the service takes the key; what else it says of a request for nothing, it may say.

        Raises:
            EnvironmentFault: nobody answers at the address.
            UserError: the service refuses the key, or does not know the model.
        """
        end = self.deadline()

        def attempt() -> None:
            messages: list[Any] = [{"role": "user", "content": "Hello."}]
            try:
                with self._attempt(end) as silence:
                    self._client.messages.count_tokens(model=self.model, messages=messages, timeout=silence)
            except self._sdk.APIStatusError as error:  # a server that does not count is no reason to stop
                if error.status_code in (401, 403) or error.api_message == f"model: {self.model}":
                    self._judge(error)
            except _Broken as error:
                if isinstance(error.__cause__, self._sdk.APIConnectionError):
                    raise

        self._persist(attempt, end, FIRST_ATTEMPTS)

    def _persist(self, attempt: Callable[[], Sent], end: float, attempts: int) -> Sent:
        """What ``attempt`` returns, made again while the service is busy, broken or silent, each time with a line in
        the log.

        Raises:
            EnvironmentFault: it came to nothing before ``end`` in so many attempts.
            UserError: the service refuses the key, the model or the request.
        """
        why, tried = "", f"in {attempts} attempts"
        for number in range(attempts):
            try:
                return attempt()
            except self._sdk.APIStatusError as error:
                why, wait = self._judge(error), _retry_after(error)
            except _Broken as error:
                why, wait = str(error), None
            wait = min(0.5 * 2**number, MAX_WAIT_S) if wait is None else wait
            if self._clock() + wait >= end:
                tried = f"within {self._deadline_s:g} s"
                break
            if number + 1 < attempts:
                _LOGGER.warning("%s: %s; asked again in %g s", self.model, why, wait)
                self._sleep(wait)
        raise EnvironmentFault(
            f"no reply from {self.model} at {self._address} {tried}: {why}; run the same command again later, "
            "or set ANTHROPIC_BASE_URL if that is not its address"
        )

    def count(self, turn: Turn, *, end: float) -> Count:
        """Input tokens of ``turn``, as the service counts them or, where it does not before ``end``, by length."""
        body = {key: value for key, value in self._body(turn).items() if key != "output_config"}
        try:
            with self._attempt(end) as silence:
                counted = self._client.messages.count_tokens(**body, timeout=silence).input_tokens
        except (self._sdk.APIStatusError, _Broken):
            counted = None
        if isinstance(counted, int) and counted > 0:
            return Count(counted, estimated=False)
        return Count(estimated_input(turn), estimated=True)

    def _most(self, turn: Turn, end: float) -> Spent:
        """What one attempt uses at most; the service counts only where the length alone would end it."""
        price = price_of(self.model)
        most = bound(price, most_input(turn), turn.max_tokens)
        if self.allowance.holds(most):
            return most
        count = self.count(turn, end=end)
        return most if count.estimated else bound(price, count.tokens, turn.max_tokens)

    def _body(self, turn: Turn, forced: str = "") -> dict[str, Any]:
        """The request, all but its longest answer. What is equal from turn to turn is marked for the cache."""
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in turn.tools
        ]
        body: dict[str, Any] = {"model": self.model, "messages": list(turn.messages)}
        if turn.system:
            body["system"] = [{"type": "text", "text": turn.system, **_CACHED}]
        if tools:
            body["tools"] = tools
        if self._effort:
            body["output_config"] = {"effort": self._effort}
        body = _sendable(body)
        if forced:
            return {**body, "tool_choice": {"type": "tool", "name": forced}} if self._forcible else body
        if tools:
            body["tools"][-1] |= _CACHED
        _mark(body["messages"])
        return body

    def _receive(
        self, body: Mapping[str, Any], max_tokens: int, end: float
    ) -> tuple[tuple[Mapping[str, Any], ...], str]:
        """One attempt; what it used is charged, also if it failed.

        Raises:
            _Broken: the connection, or what came over it, cannot be used.
        """
        draft = Draft()
        try:
            with (
                self._attempt(end) as silence,
                self._client.messages.create(**body, max_tokens=max_tokens, stream=True, timeout=silence) as stream,
            ):
                if "html" in stream.response.headers.get("content-type", ""):
                    raise _Broken(f"{self._client.base_url.host} answers with a web page, not as the service does")
                for event in stream:
                    draft.take(event.to_dict(warnings=False))
                return draft.finished()
        finally:
            self.allowance.charge(draft.spent(price_of(self.model)))

    @contextmanager
    def _attempt(self, end: float) -> Iterator[float]:
        """The seconds of silence to bear; what goes wrong within is `_Broken`, but for what the service says itself."""
        import httpx2

        self._end = end
        try:
            yield max(min(end - self._clock(), SILENCE_S), 0.1)
        except (self._sdk.APIConnectionError, httpx2.HTTPError) as error:
            raise _Broken(f"the connection to {self._client.base_url.host} failed ({_cause(error)})") from error
        except NotInFormat as error:
            raise _Broken(str(error)) from error
        except (self._sdk.APIResponseValidationError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _Broken(f"the service's answer is not in its format ({type(error).__name__})") from error

    def _watch(self, response: httpx2.Response) -> None:
        """Let the deadline and the limit on bytes hold for every piece of a reply, pings included."""
        import httpx2

        clock, end, body = self._clock, self._end, response.stream

        class Watched(httpx2.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                size = 0
                for piece in body:  # type: ignore[union-attr]
                    size += len(piece)
                    if clock() > end:
                        raise _Broken("it is still answering")
                    if size > MAX_BYTES:
                        raise _Broken(f"its answer is longer than {MAX_BYTES} bytes")
                    yield piece

            def close(self) -> None:
                body.close()  # type: ignore[union-attr]

        response.stream = Watched()

    def _judge(self, error: anthropic.APIStatusError) -> str:
        """Why it failed, when another attempt may help.

        Raises:
            UserError: none will.
        """
        said, status = _shown(error.api_message or error.message), error.status_code
        if status in (401, 403):
            raise UserError(f"the service refuses the key ({said}): set ANTHROPIC_API_KEY to a valid one") from error
        if 400 <= status < 500 and status not in (408, 409, 429):
            advice = f"is {self.model} the model's name?" if status == 404 else "mend what it names, then go on"
            raise UserError(f"the service refuses the request for {self.model} ({said}): {advice}") from error
        return f"the service says {status} ({said})"


class _Broken(Exception):
    """An attempt that may succeed if made again."""


def _sendable(body: dict[str, Any]) -> dict[str, Any]:
    """A copy without the key that can be encoded: lone surrogates, as a log read byte by byte may have them, become
    question marks.
    """
    copy: dict[str, Any] = json.loads(concealed(json.dumps(body, ensure_ascii=False)).encode("utf-8", "replace"))
    return copy


def _mark(messages: list[dict[str, Any]]) -> None:
    """Mark the last two messages of the user: the one is written to the cache, the other read from it.

    **Source:** platform.claude.com/docs/en/build-with-claude/prompt-caching: at most four marks in a request.
    """
    asked = [message for message in messages if message.get("role") == "user" and message.get("content")]
    for message in asked[-2:]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        message["content"][-1] |= _CACHED


def _shown(said: str) -> str:
    """The beginning of what the service says, without the key and what a terminal would obey."""
    line = " ".join(concealed(said).split())[:MAX_SAID]
    return "".join(sign for sign in line if sign.isprintable())


def _cause(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) if isinstance(cause, _Broken) else type(cause).__name__


def _retry_after(error: anthropic.APIStatusError) -> float | None:
    """Seconds the service asks to wait, None where it does not say in a number."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
