"""What a tool is: a schema the model sees, a function behind it, and bounds on what goes in and comes out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import Proposal, UserError
from attune_lab.llm.chat import Tool
from attune_lab.llm.schema import problems

if TYPE_CHECKING:
    from attune_lab.agent.claude.session import Session

MAX_RESULT = 24_000
"""So many characters of a result go back to the model at most; every tool bounds its own parts below that."""

MAX_SENTENCE = 600
"""So many characters of a refusal."""


class Refused(Exception):
    """A tool will not do what it was asked; the message says why, and what would do.

    ``quoted`` is what the file or the recipe says to it: text of others, shown as such.
    """

    def __init__(self, message: str, quoted: str = "") -> None:
        super().__init__(message)
        self.quoted = quoted


@dataclass(frozen=True)
class Launch:
    """The model wants a run: the campaign makes it, and ``answer`` says what came of it."""

    proposal: Proposal


@dataclass(frozen=True)
class Finish:
    """The model is done. ``choice`` is a run's label or ``baseline``."""

    choice: str
    why: str


Outcome = dict[str, Any] | Launch | Finish


@dataclass(frozen=True)
class Entry:
    """A tool and the function that does its work on a session; the input keeps to the schema by then."""

    tool: Tool
    run: Callable[[Session, Mapping[str, Any]], Outcome]


def entry(
    run: Callable[[Session, Mapping[str, Any]], Outcome],
    description: str,
    required: Mapping[str, Mapping[str, Any]] | None = None,
    optional: Mapping[str, Mapping[str, Any]] | None = None,
) -> Entry:
    """The tool named like the function, with its inputs by name."""
    schema = {
        "type": "object",
        "properties": {**(required or {}), **(optional or {})},
        "required": list(required or {}),
        "additionalProperties": False,
    }
    return Entry(Tool(run.__name__, description, schema), run)


def text(description: str, most: int = 200) -> dict[str, Any]:
    """Schema of a text of 1 to ``most`` characters."""
    return {"type": "string", "description": description, "minLength": 1, "maxLength": most}


def whole(description: str, least: int, most: int) -> dict[str, Any]:
    """Schema of a whole number."""
    return {"type": "integer", "description": description, "minimum": least, "maximum": most}


class Toolbox:
    """Tools by name.

    Raises:
        ValueError: a name used twice, or a schema that is not checked.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        entries = tuple(entries)
        self._entries = {entry.tool.name: entry for entry in entries}
        if len(self._entries) < len(entries):
            raise ValueError("two tools have the same name")
        self.tools = tuple(entry.tool for entry in entries)

    def use(self, session: Session, name: object, arguments: object) -> Outcome:
        """What a call comes to.

        Raises:
            Refused: no such tool, an input that does not fit its schema, or what the tool itself refuses.
        """
        if not isinstance(name, str) or name not in self._entries:
            raise Refused(f"there is no such tool; the tools are {', '.join(self._entries)}")
        found = self._entries[name]
        if faults := problems(arguments, found.tool.schema, "the input"):
            raise Refused(f"{name} was not run: {'; '.join(faults[:5])}")
        assert isinstance(arguments, Mapping)
        try:
            return found.run(session, arguments)
        except UserError as error:
            raise Refused(f"{name} is not possible here", session.without_folders(str(error))) from error


def as_text(result: Mapping[str, Any]) -> str:
    """A result as the JSON text the model reads; one that is too long says so instead.

    Not-a-number and infinite figures are null.
    """
    written = json.dumps(_plain(result), ensure_ascii=False, allow_nan=False)
    if len(written) > MAX_RESULT:
        return json.dumps({"error": f"the result has {len(written)} characters; ask for less at a time"})
    return written


def refusal(refused: Refused) -> str:
    """A refusal as the JSON text the model reads."""
    told = {"error": shortened(str(refused), MAX_SENTENCE)}
    if refused.quoted:
        told["quoted_text"] = shortened(refused.quoted, MAX_SENTENCE)
    return json.dumps(told, ensure_ascii=False)


def shortened(words: str, most: int) -> str:
    """``words`` as one printable line of at most ``most`` characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def figure(value: float | None, digits: int = 5) -> float | None:
    """A figure with so many significant digits; None where there is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _plain(value: Any) -> Any:
    """``value`` as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return figure(value, 12)
    return value
