"""How many tokens a text is, as far as its length tells."""

from __future__ import annotations

import json
import math

from attune_lab.llm.chat import Turn

CHARACTERS_PER_TOKEN = 3.5
"""English characters a token stands for. **Source:** Anthropic's glossary, docs.anthropic.com, entry "Tokens"."""

FEWEST_BYTES_PER_TOKEN = 2
"""What a bound counts with: code, JSON and columns of numbers have fewer characters a token than prose."""

TOOLS_OVERHEAD = 1000
"""More than the service adds of its own for tools, at most 530 a request. **Source:**
docs.anthropic.com/en/docs/tool-use-pricing-and-tokens, the table of tokens by model."""


def estimated_tokens(text: str) -> int:
    """Tokens of ``text`` by its length; an estimate, within about a fifth for English prose."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def estimated_input(turn: Turn) -> int:
    """Tokens that a turn sends, by its length; an estimate."""
    return estimated_tokens(_text(turn))


def most_input(turn: Turn) -> int:
    """More tokens than a turn sends, by its length."""
    return math.ceil(len(_text(turn).encode("utf-8", "replace")) / FEWEST_BYTES_PER_TOKEN) + TOOLS_OVERHEAD


def _text(turn: Turn) -> str:
    tools = [[tool.name, tool.description, tool.schema] for tool in turn.tools]
    return json.dumps([turn.system, tools, turn.messages], ensure_ascii=False)
