"""A synthetic language that needs every path of a transformer to predict.

A document opens with a *key*. Words then follow each other by a table (embedding, feed-forward layers and experts) that
depends on the key, or are new words of a skewed vocabulary. An *echo* marker is followed by the word a set distance
back (positions), the *recall* marker by the document's key (attention over any distance), and spans come again word
for word (attention by content: induction). A first-order Markov language would need no attention at all, and a model
trained on it would not show faults of attention.

**Source:** copying as the test of attention by content: Olsson et al., arXiv 2209.11895.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from random import Random

PADDING = 0
FOLLOWERS = 4
ECHO_DISTANCES = (2, 5, 12, 24)
SHORTEST_COPY, LONGEST_COPY = 8, 16

NEW_WORD, ECHO, RECALL = 0.2, 0.1, 0.05
"""Shares of what comes after a word; in the other cases one of its followers comes."""
COPY = 0.3
"""Share of the places past the shortest copy where an earlier span begins again instead."""

Draw = Callable[[], float]
"""The next number of a stream, uniform in [0, 1)."""


@dataclass(frozen=True)
class Language:
    """What a token id means: padding, the keys, the recall marker, the echo markers, then words by frequency."""

    keys: range
    recall: int
    echoes: range
    words: range
    followers: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """By dialect (the key's parity), then by token: the first comes in half of the cases, the next in half of the
    rest, and so on."""

    def word(self, draw: Draw) -> int:
        """A new word. The n-th has a share of log(1 + 1/n) / log(1 + words), close to Zipf's law."""
        return self.words[int((len(self.words) + 1) ** draw()) - 1]

    def document(self, length: int, draw: Draw) -> list[int]:
        """A document of `length` tokens."""
        text = [self.keys[int(draw() * len(self.keys))]]
        while len(text) < length:
            if len(text) > SHORTEST_COPY and draw() < COPY:
                text += _earlier_span(text, draw)
            else:
                text.append(self._next(text, draw))
        return text[:length]

    def _next(self, text: list[int], draw: Draw) -> int:
        key, last = text[0], text[-1]
        if last == self.recall:
            return key
        if last in self.echoes:
            return text[-min(ECHO_DISTANCES[last - self.echoes.start], len(text))]
        choice = draw()
        if choice < NEW_WORD:
            return self.word(draw)
        if choice < NEW_WORD + ECHO:
            return self.echoes[int(draw() * len(self.echoes))]
        if choice < NEW_WORD + ECHO + RECALL:
            return self.recall
        return self.followers[key % 2][last][min(int(-log2(1 - draw())), FOLLOWERS - 1)]


@lru_cache(maxsize=8)
def language(vocab_size: int) -> Language:
    """The language of a vocabulary of at least 8 tokens: one and the same for every seed of the data."""
    keys = range(1, 1 + min(8, vocab_size // 4))
    echoes = range(keys.stop + 1, keys.stop + 1 + min(len(ECHO_DISTANCES), vocab_size // 8))
    words = Language(keys, keys.stop, echoes, range(echoes.stop, vocab_size))
    draw = Random(f"language of {vocab_size} tokens").random
    followers = [[[words.word(draw) for _ in range(FOLLOWERS)] for _ in range(vocab_size)] for _ in range(2)]
    return Language(keys, keys.stop, echoes, words.words, tuple(tuple(map(tuple, table)) for table in followers))


def _earlier_span(text: list[int], draw: Draw) -> list[int]:
    """Tokens of a text that stand together, without its key."""
    length = min(SHORTEST_COPY + int(draw() * (LONGEST_COPY - SHORTEST_COPY + 1)), len(text) - 1)
    start = 1 + int(draw() * (len(text) - length))
    return text[start : start + length]
