"""A ceiling on what language models may use: checked before anything is sent, settled after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.prices import Price


@dataclass(frozen=True)
class Spent:
    """Tokens and dollars; ``usd`` is nan where the price is not known."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def usage(self) -> Mapping[str, float]:
        """As a tuner reports it: without the dollars where the price is not known."""
        used = {"input_tokens": float(self.input_tokens), "output_tokens": float(self.output_tokens)}
        return used if math.isnan(self.usd) else {**used, "usd": self.usd}

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.usd + other.usd
        )

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.input_tokens - other.input_tokens, self.output_tokens - other.output_tokens, self.usd - other.usd
        )


class Allowance:
    """What may be used of tokens and dollars, and what was; one for all the models of a tuner.

    Args:
        tokens: of input and output together, those read from the cache included; 0 for no limit.
        usd: dollars; 0 for no limit. Holds only where the price is known.
    """

    def __init__(self, tokens: int = 0, usd: float = 0.0) -> None:
        self.tokens, self.usd = tokens, usd
        self.spent = Spent()

    def charge(self, spent: Spent) -> None:
        """Count what was used."""
        self.spent += spent

    def holds(self, most: Spent) -> bool:
        """Whether ``most`` more stays within the ceiling."""
        return not self._shortage(most)

    def reserve(self, most: Spent) -> None:
        """Return if the next attempt, which uses ``most`` at most, stays within the ceiling.

        Raises:
            AllowanceSpent: it might not.
        """
        if shortage := self._shortage(most):
            raise AllowanceSpent(shortage)

    def _shortage(self, most: Spent) -> str:
        after = self.spent + most
        if self.tokens and after.tokens > self.tokens:
            used = self.spent.tokens
            return f"{used} of its {self.tokens} tokens are used, and the next answer could take {most.tokens}"
        if self.usd and not after.usd <= self.usd:
            return (
                f"${self.spent.usd:.2f} of its ${self.usd:.2f} are used, and the next answer could take ${most.usd:.2f}"
            )
        return ""


def bound(price: Price | None, input_tokens: int, max_tokens: int) -> Spent:
    """The most that an answer uses: all input new and written to the cache, and the longest output."""
    usd = math.nan
    if price is not None:
        dear = max(price.input, price.cache_write)
        usd = (input_tokens * dear + max_tokens * price.output) / 1e6
    return Spent(input_tokens, max_tokens, usd)
