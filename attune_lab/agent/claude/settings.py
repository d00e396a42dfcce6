"""The options of the claude policy, checked once, before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attune_lab.agent.rules import Rulebook
from attune_lab.contracts import TuningTask, UserError

if TYPE_CHECKING:
    from attune_lab.lessons.evidence import Experience
    from attune_lab.llm.chat import Chat

OPTIONS = ("policy", "model", "effort", "tokens", "usd", "transcript", "without", "lessons")

DEFAULT_TOKENS = 5_000_000
"""Ceiling in tokens where none is given: an unattended conversation must end. Every answer is billed for the whole
conversation before it, most of it read from the cache, so a campaign of forty runs needs a few million."""


@dataclass(frozen=True)
class Settings:
    """The options as understood; see `attune_lab.llm.opening.open_chat` for those of the model.

    Attributes:
        tokens, usd: ceilings of the conversation; ``usd`` 0 for none.
        lessons: what past campaigns showed, a file or what was pinned of it; None for nothing.
    """

    rules: Rulebook
    model: str = ""
    effort: str = ""
    tokens: int = DEFAULT_TOKENS
    usd: float = 0.0
    transcript: str = ""
    lessons: Any = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """The settings that a task's options state.

        Raises:
            UserError: an unknown option, or one whose value is of the wrong kind.
        """
        for key in options:
            if key not in OPTIONS:
                raise UserError(f"option {key!r} of the claude policy is not known; known: {', '.join(OPTIONS)}")
        words = {key: _word(options, key) for key in ("model", "effort", "transcript")}
        tokens = _figure(options, "tokens", DEFAULT_TOKENS)
        if tokens != int(tokens):
            raise UserError(f"option tokens={tokens}: give a whole number of tokens")
        return cls(
            rules=Rulebook(_names(options.get("without", ()))),
            tokens=int(tokens),
            usd=_figure(options, "usd", 0.0) if "usd" in options else 0.0,
            lessons=options.get("lessons"),
            **words,
        )

    def open_chat(self, task: TuningTask) -> Chat:
        """The conversation, recorded in the campaign's folder; nothing is sent yet.

        Raises:
            UserError: a missing package or key, a file that is no transcript, dollars where the price is not known.
        """
        from attune_lab.llm.opening import open_chat, transcript_path

        path: Path | None = transcript_path(task, "claude", self.transcript)
        return open_chat(model=self.model, effort=self.effort, transcript=path, tokens=self.tokens, usd=self.usd)

    def experience(self) -> Experience | None:
        """What past campaigns showed, or None.

        Raises:
            UserError: the file is no such record.
        """
        if self.lessons is None:
            return None
        from attune_lab.lessons.evidence import Evidence

        return Evidence.load(self.lessons)


def _word(options: Mapping[str, Any], key: str) -> str:
    value = options.get(key, "")
    if not isinstance(value, str) or len(value) > 1000:
        raise UserError(f"option {key} of the claude policy must be a text")
    return value


def _figure(options: Mapping[str, Any], key: str, default: float) -> float:
    """A ceiling: more than nothing.

    Raises:
        UserError: anything else.
    """
    value = options.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UserError(f"option {key}={value}: give a number above 0, the most the conversation may use")
    return value


def _names(without: Any) -> tuple[str, ...]:
    if not (isinstance(without, list | tuple) and all(isinstance(name, str) for name in without)):
        raise UserError("option 'without' must be a list of rule names")
    return tuple(without)
