"""From the options of a tuner to the model it talks to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attune_lab.llm.claude import DEFAULT_MODEL, ClaudeLLM
from attune_lab.llm.scripted import Script, ScriptedLLM
from attune_lab.llm.transcript import RecordedLLM, Transcript

KINDS = ("scripted", "claude")


def open_llm(kind: str, scripts: Mapping[str, Script], *, model: str = "", transcript: str = "") -> RecordedLLM:
    """A model whose exchanges are recorded.

    Args:
        kind: ``scripted`` plays ``scripts`` offline; ``claude`` asks Claude.
        scripts: the scripted players, by role.
        model: of Claude; its default if empty.
        transcript: file of exchanges; in memory if empty, and then a campaign with Claude cannot be resumed.

    Raises:
        UserError: a missing package or key, or a file that is no transcript.
    """
    kept = Transcript(Path(transcript) if transcript else None)
    if kind == "scripted":
        return RecordedLLM("scripted", lambda: ScriptedLLM(scripts), kept)
    model = model or DEFAULT_MODEL
    return RecordedLLM(model, lambda: ClaudeLLM(model), kept)
