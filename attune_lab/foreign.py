"""What files and code of strangers say, made fit to use, to keep and to print."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

MAX_VALUES = 100_000
"""So many values are read from one YAML text, each counted as often as aliases repeat it."""

MAX_SAID = 500
"""So many characters of a stranger's sentence are kept."""

MAX_TRACEBACK = 200_000
"""So many characters of a traceback are kept."""


def one_line(text: str, most: int = MAX_SAID) -> str:
    """``text`` on one line, its middle left out where it is longer, with every character one that UTF-8 can hold."""
    if len(text) > 4 * most:  # before anything is done with all of it
        text = f"{text[: 2 * most]} ... {text[-2 * most :]}"
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= most else f"{line[: most // 2]} ... {line[-most // 2 :]}"


def told(error: BaseException) -> str:
    """Kind and message of an exception, one line; the kind alone where the message cannot be read."""
    kind = type(error).__name__
    try:
        return one_line(f"{kind}: {error}")
    except Exception:  # its own __str__ is a stranger's too
        return one_line(kind)


def told_with_place(error: BaseException) -> str:
    """`told`, and the last line of the stranger's own code on the way to it: ``TypeError: …; my_tuner.py, line 12``.

    Their own code is the package of the first frame that is none of ours; the caller's frame, the first, never counts.
    """
    first = error.__traceback__ and error.__traceback__.tb_next
    frames = [
        (str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(first)
    ]
    theirs = next((package for package, _, _ in frames if package != __package__), __package__)
    own = [f"{Path(file).name}, line {line}" for package, file, line in frames if package == theirs]
    return f"{told(error)}; {one_line(own[-1], 100)}" if own else told(error)


def traceback_of(error: BaseException) -> str:
    """The whole traceback, its middle left out where it is longer than anybody reads."""
    text = "".join(traceback.format_exception(error))
    if len(text) > MAX_TRACEBACK:
        text = f"{text[: MAX_TRACEBACK // 2]}\n...\n{text[-MAX_TRACEBACK // 2 :]}"
    return text


def read_yaml(text: str) -> Any:
    """The plain values that a YAML text says.

    Raises:
        ValueError: more values than anybody writes, as where aliases repeat aliases, or one that is part of itself.
        ruamel.yaml.error.YAMLError: no YAML, or more than plain values.
        RecursionError: nested too deeply.
    """
    from ruamel.yaml import YAML

    written = YAML(typ="safe", pure=True).load(text)
    left, count = [written], 0
    while left:
        value = left.pop()
        count += 1
        if count > MAX_VALUES:
            raise ValueError(f"it says more than {MAX_VALUES} values, aliases and all; write it out, and shorter")
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value
    return written
