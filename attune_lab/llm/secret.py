"""The service's key, which belongs neither in what is sent to a model nor in what is kept or shown."""

from __future__ import annotations

import os

VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")

SHORTEST = 8
"""Characters of what can be a key; replacing less would tear up the text around it."""

PUT_INSTEAD = "[the key]"


def concealed(text: str) -> str:
    """``text`` without the key, as a log that prints its environment may have it."""
    for variable in VARIABLES:
        key = os.environ.get(variable, "").strip()
        if len(key) >= SHORTEST:
            text = text.replace(key, PUT_INSTEAD)
    return text
