"""Claude behind the interface: one forced tool call a reply, checked, within a deadline of our own."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import Reply, Request, UnusableReply
from attune_lab.llm.prices import price_of
from attune_lab.llm.schema import problems

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message

DEFAULT_MODEL = "claude-opus-5"

TOOL = "reply"
"""The tool the model must call; the reply is its input."""

DEADLINE_S = 180.0
"""Seconds a reply may take, second tries and waiting included. The service's retry-after has no upper limit."""

MAX_WAIT_S = 8.0
"""Longest wait between attempts when the service names none."""

MAX_ATTEMPTS = 6
"""Attempts at one message; each may cost tokens."""


class ClaudeLLM:
    """Asks Claude through the anthropic SDK; the key comes from ``ANTHROPIC_API_KEY``.

    The system text is marked for the service's cache. Replies are streamed, so that the deadline can be kept.

    Args:
        model: name of the model.
        base_url: of the service; the SDK's default if None.
        deadline_s: seconds a reply may take in all.
        clock, sleep: seconds since some moment, and waiting; replaced in tests.

    Raises:
        UserError: the package or the key is missing.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        base_url: str | None = None,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise UserError("asking Claude needs the anthropic package: pip install 'attune-lab[agent]'") from error
        self._sdk, self.model, self._deadline_s = anthropic, model, deadline_s
        self._clock, self._sleep = clock, sleep
        self._client = anthropic.Anthropic(base_url=base_url, max_retries=0)
        if not (self._client.api_key or self._client.auth_token):
            raise UserError("asking Claude needs a key: set ANTHROPIC_API_KEY, or use the scripted players instead")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model

    def complete(self, request: Request) -> Reply:
        """Claude's reply. One that does not fit the schema is sent back once with what is wrong.

        Raises:
            UnusableReply: the second does not fit either.
            EnvironmentFault: no reply within the deadline.
            UserError: the service refuses the key, the model or the request.
        """
        end = self._clock() + self._deadline_s
        spent = Reply({})
        prompt, faults = request.prompt, [""]
        for _ in range(2):
            message = self._send(request, prompt, end)
            spent = _plus(spent, message, self.model)
            body, faults = _read(message, request.schema)
            if not faults:
                return Reply(body, spent.input_tokens, spent.output_tokens, spent.usd)
            prompt = f"{request.prompt}\n\nYour last reply, {json.dumps(body)}, was refused: {'; '.join(faults)}."
        raise UnusableReply(f"{self.model} gave no usable reply as {request.role}: {'; '.join(faults)}", spent)

    def _send(self, request: Request, prompt: str, end: float) -> Message:
        """The message, tried again while the service is busy, broken or silent and time is left."""
        why = ""
        for attempt in range(MAX_ATTEMPTS):
            try:
                return self._receive(request, prompt, end)
            except self._sdk.APIStatusError as error:
                why, wait = self._judge(error), _retry_after(error)
            except _Broken as error:
                why, wait = str(error), None
            wait = min(0.5 * 2**attempt, MAX_WAIT_S) if wait is None else wait
            if self._clock() + wait >= end:
                break
            self._sleep(wait)
        raise EnvironmentFault(
            f"no reply from {self.model} within {self._deadline_s:g} s: {why}; run the same command again later"
        )

    def _receive(self, request: Request, prompt: str, end: float) -> Message:
        """One attempt. A stream that ends without a stop reason was cut.

        Raises:
            _Broken: the connection, or what came over it, cannot be used.
        """
        import httpx2

        try:
            with self._client.messages.stream(
                model=self.model,
                max_tokens=request.max_tokens,
                system=[{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}],
                messages=[{"role": "user", "content": prompt}],
                tools=[{"name": TOOL, "description": "Your whole reply.", "input_schema": dict(request.schema)}],
                tool_choice={"type": "tool", "name": TOOL},
                timeout=max(end - self._clock(), 0.1),  # of one silence
            ) as stream:
                for _ in stream:
                    if self._clock() > end:
                        raise _Broken("it is still answering")
                message = stream.get_final_message()
        except (self._sdk.APIConnectionError, httpx2.HTTPError) as error:
            raise _Broken(f"the connection failed ({type(error).__name__})") from error
        except (ValueError, TypeError, AttributeError, LookupError, RuntimeError, AssertionError) as error:
            raise _Broken(f"the service's answer is not in its format ({type(error).__name__})") from error
        if message.stop_reason is None:
            raise _Broken("the answer was cut off")
        return message

    def _judge(self, error: anthropic.APIStatusError) -> str:
        """Why it failed, when another attempt may help.

        Raises:
            UserError: none will.
        """
        said = error.api_message or error.message
        if error.status_code in (401, 403):
            raise UserError(f"the service refuses the key ({said}): set ANTHROPIC_API_KEY to a valid one") from error
        passing = error.status_code in (408, 409, 429) or error.status_code >= 500 or error.status_code < 400
        if not passing:
            raise UserError(f"the service refuses the request for {self.model} ({said}): check the model's name")
        return f"the service says {error.status_code} ({said})"


class _Broken(Exception):
    """An attempt that may succeed if made again."""


def _read(message: Message, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The input of the tool call, and why it is not usable."""
    calls = [block for block in message.content if block.type == "tool_use" and block.name == TOOL]
    if message.stop_reason == "max_tokens":
        return {}, ["it was longer than the limit"]
    if not calls:
        return {}, [f"the tool {TOOL} was not called"]
    body: Any = calls[0].input
    return body, problems(body, schema)


def _plus(spent: Reply, message: Message, model: str) -> Reply:
    """``spent`` with the tokens of one more message."""
    usage, price = message.usage, price_of(model)
    written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    usd = math.nan
    if price is not None:
        usd = price.usd(new=usage.input_tokens, written=written, read=read, output=usage.output_tokens)
    seen = usage.input_tokens + written + read
    return Reply({}, spent.input_tokens + seen, spent.output_tokens + usage.output_tokens, spent.usd + usd)


def _retry_after(error: anthropic.APIStatusError) -> float | None:
    """Seconds the service asks to wait, None where it does not say in a number."""
    try:
        return max(float(error.response.headers.get("retry-after", "")), 0.0)
    except ValueError:
        return None
