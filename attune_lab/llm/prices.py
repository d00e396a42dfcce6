"""What a language model's tokens cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ruamel.yaml import YAML


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens. Writing to the cache and reading from it have prices of their own."""

    input: float
    output: float
    cache_write: float
    cache_read: float

    def usd(self, *, new: int, written: int, read: int, output: int) -> float:
        """Dollars for tokens: new input, input written to the cache, input read from it, output."""
        spent = new * self.input + written * self.cache_write + read * self.cache_read + output * self.output
        return spent / 1e6


def price_of(model: str) -> Price | None:
    """The price of ``model``, None where it is not known. **Source:** data/llm_prices.yaml names it."""
    return _prices().get(re.sub(r"-\d{8}$", "", model))


@cache
def _prices() -> dict[str, Price]:
    text = files("attune_lab").joinpath("data/llm_prices.yaml").read_text(encoding="utf-8")
    return {model: Price(**row) for model, row in YAML(typ="safe").load(text)["models"].items()}
