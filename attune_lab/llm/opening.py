"""From the options of a tuner to the model it talks to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from attune_lab.contracts import TuningTask, UserError
from attune_lab.llm.allowance import Allowance
from attune_lab.llm.claude import ClaudeChat, ClaudeLLM
from attune_lab.llm.prices import price_of
from attune_lab.llm.recorded import RecordedChat, RecordedLLM
from attune_lab.llm.scripted import Script, ScriptedLLM
from attune_lab.llm.service import DEFAULT_MODEL, Service
from attune_lab.llm.transcript import Transcript

KINDS = ("scripted", "claude")

TRANSCRIPT = "transcript.jsonl"
"""Name of the transcript in the folder of a campaign."""

CHAT_DEADLINE_S = 600.0
"""Seconds an answer of a conversation may take in all; it may be long, and think."""

_trying: ContextVar[bool] = ContextVar("_trying", default=False)
_replayed: ContextVar[Path | None] = ContextVar("_replayed", default=None)


@contextmanager
def trying() -> Iterator[None]:
    """Models opened within are tried at once if nothing is recorded yet: a wrong key or address is found out then."""
    token = _trying.set(True)
    try:
        yield
    finally:
        _trying.reset(token)


@contextmanager
def replaying(transcript: Path) -> Iterator[None]:
    """Models opened within answer from ``transcript`` alone, scripted ones else by their scripts; it stays as it is."""
    token = _replayed.set(transcript)
    try:
        yield
    finally:
        _replayed.reset(token)


def transcript_path(task: TuningTask, kind: str, named: str) -> Path | None:
    """Where the transcript of a tuner is: where it is ``named``; for Claude else in the campaign's folder, if there is
    one; else nowhere, in memory.
    """
    if named:
        return Path(named)
    return task.desk.folder / TRANSCRIPT if kind == "claude" and task.desk is not None else None


def open_llm(
    kind: str,
    scripts: Mapping[str, Script],
    *,
    model: str = "",
    transcript: Path | None = None,
    tokens: int = 0,
    usd: float = 0.0,
) -> RecordedLLM:
    """A model whose exchanges are recorded.

    Args:
        kind: ``scripted`` plays ``scripts`` offline; ``claude`` asks Claude.
        scripts: the scripted players, by role.
        model: of Claude; its default if empty.
        transcript: file of exchanges, see `transcript_path`.
        tokens, usd: the ceiling, 0 for none.

    Raises:
        UserError: a missing package or key, a file that is no transcript, dollars where the price is not known.
    """
    kept, replayed = _kept(transcript)
    if kind == "scripted":
        allowance = Allowance(tokens, usd)
        return RecordedLLM(kind, lambda: ScriptedLLM(scripts, allowance), kept, allowance)
    model = model or DEFAULT_MODEL
    allowance = _allowance(model, tokens, usd)
    ask = None if replayed else lambda: ClaudeLLM(_tried(Service(model, allowance=allowance)))
    return RecordedLLM(model, ask, kept, allowance)


def open_chat(
    *, model: str = "", effort: str = "", transcript: Path | None = None, tokens: int = 0, usd: float = 0.0
) -> RecordedChat:
    """A conversation with Claude that is recorded; arguments as of `open_llm`, and ``effort``, see `Service`.

    Raises:
        UserError: as `open_llm`.
    """
    model = model or DEFAULT_MODEL
    allowance = _allowance(model, tokens, usd)
    kept, replayed = _kept(transcript)

    def connect() -> ClaudeChat:
        service = Service(model, effort=effort, allowance=allowance, deadline_s=CHAT_DEADLINE_S)
        return ClaudeChat(_tried(service))

    return RecordedChat(model, None if replayed else connect, kept, allowance)


def _tried(service: Service) -> Service:
    if _trying.get():
        service.try_once()
    return service


def _kept(path: Path | None) -> tuple[Transcript, bool]:
    """The transcript, and whether it is all that may answer."""
    replayed = _replayed.get()
    return (Transcript(path), False) if replayed is None else (Transcript(replayed, writable=False), True)


def _allowance(model: str, tokens: int, usd: float) -> Allowance:
    if usd and price_of(model) is None:
        raise UserError(f"a ceiling of ${usd:g} needs the price of {model}, which is not known: give tokens instead")
    return Allowance(tokens, usd)
