"""What predicts the language: the last token alone does it badly, an observer who looks back does it well."""

import math
from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.trainer.language import ECHO_DISTANCES, language

VOCABULARY = 64
SPOKEN = language(VOCABULARY)


def documents(first, last, length=64):
    return [SPOKEN.document(length, Random(f"document {i}").random) for i in range(first, last)]


def cross_entropy(train, test, contexts):
    """Nats per token on `test` of the counts of `train`, by what `contexts` sees of a text before a place.

    Each context refines the one before it and backs off to it (absolute discounting, 0.5 per kind seen).
    """
    counts = defaultdict(Counter)
    for text in train:
        for place in range(1, len(text)):
            for level, context in enumerate(contexts):
                counts[level, context(text[:place])][text[place]] += 1

    def probability(text, place):
        share = 1 / VOCABULARY
        for level, context in enumerate(contexts):
            seen = counts[level, context(text[:place])]
            if total := seen.total():
                share = (max(seen[text[place]] - 0.5, 0) + 0.5 * len(seen) * share) / total
        return share

    losses = [-math.log(probability(text, place)) for text in test for place in range(1, len(text))]
    return sum(losses) / len(losses)


def last(text):
    return text[-1]


def continuation(text):
    """The last token, and what came where the last three stood before."""
    for place in range(len(text) - 1, 3, -1):
        if text[place - 3 : place] == text[-3:]:
            return text[-1], text[place]
    return text[-1]


def echoed(text):
    return text[-min(ECHO_DISTANCES[text[-1] - SPOKEN.echoes.start], len(text))]


def test_who_looks_back_predicts_better_than_who_counts_pairs_and_triples():
    train, test = documents(0, 3000), documents(3000, 3200)
    everywhere = cross_entropy(train, test, [lambda text: 0])
    pairs = cross_entropy(train, test, [last])
    triples = cross_entropy(train, test, [last, lambda text: tuple(text[-2:])])
    copies = cross_entropy(train, test, [last, continuation])
    assert everywhere > pairs + 0.5
    assert min(pairs, triples) > copies + 0.5


PATHS = {
    "copies": (lambda text: isinstance(continuation(text), tuple), lambda text: continuation(text)[1]),
    "echoes": (lambda text: text[-1] in SPOKEN.echoes, echoed),
    "keys": (lambda text: text[-1] == SPOKEN.recall, lambda text: text[0]),
    "dialects": (lambda text: text[-1] in SPOKEN.words, lambda text: SPOKEN.followers[text[0] % 2][text[-1]][0]),
}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_guesses_what_the_last_token_does_not_tell(path):
    """Right guesses where the path applies, against the most frequent follower of the last token."""
    applies, guess = PATHS[path]
    followers = defaultdict(Counter)
    for text in documents(0, 2000):
        for place in range(1, len(text)):
            followers[text[place - 1]][text[place]] += 1
    places = [
        (text[:place], text[place]) for text in documents(2000, 2100) for place in range(1, 64) if applies(text[:place])
    ]
    right = sum(guess(text) == token for text, token in places) / len(places)
    by_pairs = sum(followers[text[-1]].most_common(1)[0][0] == token for text, token in places) / len(places)
    assert right > 1.2 * by_pairs, (right, by_pairs)


def test_the_vocabulary_is_skewed_and_used():
    spoken = language(512)
    counts = Counter(t for i in range(500) for t in spoken.document(64, Random(f"{i}").random))
    shares = sorted((n / counts.total() for n in counts.values()), reverse=True)
    assert len(shares) > 400
    assert sum(shares[:32]) > 0.5


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_ends_of_a_draw_are_words(draw):
    assert SPOKEN.word(lambda: draw) in SPOKEN.words


@given(st.integers(8, 600), st.integers(1, 100), st.integers())
def test_a_document_of_any_vocabulary_and_length(vocabulary, length, seed):
    spoken = language(vocabulary)
    text = spoken.document(length, Random(f"{seed}").random)
    assert len(text) == length
    assert text[0] in spoken.keys
    assert all(0 < token < vocabulary for token in text)
