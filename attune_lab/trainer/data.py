"""Which samples a rank reads at a step, and what is in them: the same global batch for every layout.

Everything is a function of the settings, the step, the data-parallel rank and the micro-batch: no state is kept, so
a resumed run goes on where it stopped.

**Source:** order of the samples and rolled multi-token targets: NVIDIA/Megatron-LM@cd55b7a,
megatron/training/datasets/data_samplers.py; @13f8f52, megatron/core/transformer/multi_token_prediction.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import injection_point
from attune_lab.trainer.language import PADDING, language

Row = NDArray[np.int64]


class Batch(NamedTuple):
    """Micro-batch, every tensor (sequences, seq_len). Masks are float32 of 0 and 1, the others int64."""

    tokens: Tensor
    labels: Tensor
    mask: Tensor
    """1 where the label counts: text of the same document."""
    positions: Tensor
    """From 0 at the start of each document."""
    documents: Tensor
    """Number of the document within its sequence."""
    next_tokens: Tensor
    """Input of the multi-token module: the tokens one further on."""
    next_labels: Tensor
    next_mask: Tensor


@injection_point
def load(config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> Batch:
    """The micro-batch of a data-parallel rank at a step. Steps count from 1, micro-batches from 0."""
    return assemble(config, sample_indices(config, step, dp_rank, microbatch))


@injection_point
def sample_indices(config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> list[int]:
    """The samples of a micro-batch: those at `mbs` places of the order, next to the other ranks' places."""
    consumed = (step - 1) * config.gbs
    first = consumed + (microbatch * config.dp + dp_rank) * config.mbs
    return [sample_at(config, place) for place in range(first, first + config.mbs)]


@injection_point
def sample_at(config: TrainerConfig, place: int) -> int:
    """The sample at a place of the endless order of epochs."""
    epoch, offset = divmod(place, config.samples_per_epoch)
    return epoch_order(config, epoch)[offset]


@injection_point
def epoch_order(config: TrainerConfig, epoch: int) -> Sequence[int]:
    """All samples of an epoch in a random order of its own."""
    return _shuffled(config.data_seed, epoch, config.samples_per_epoch)


@injection_point
def assemble(config: TrainerConfig, indices: Sequence[int]) -> Batch:
    """The micro-batch of some samples."""
    samples = zip(*(sample(config, index) for index in indices), strict=True)
    return Batch(*(torch.cat(rows).to(torch.get_default_device()) for rows in samples))


def sample(config: TrainerConfig, index: int) -> Batch:
    """A sample, as a batch of one sequence."""
    documents = document_ids(config, index)
    text = make_sequence(config, index)
    tokens, labels = text[:-1], shift_labels(text)
    mask = loss_mask(documents, text_length(config, index))
    following = shift_again(labels, mask)
    rows = (tokens, labels, mask, position_ids(documents[:-1]), documents[:-1], labels, *following)
    return Batch(*(torch.from_numpy(np.array(row))[None] for row in rows))


@injection_point
def document_ids(config: TrainerConfig, index: int) -> Row:
    """Document of each of the `seq_len` + 1 tokens of a sample."""
    lengths = _document_lengths(config, index)
    return np.repeat(np.arange(len(lengths)), lengths)


@injection_point
def position_ids(documents: Row) -> Row:
    """Distance of each token from the start of its document."""
    return np.arange(len(documents)) - np.searchsorted(documents, documents)


@injection_point
def text_length(config: TrainerConfig, index: int) -> int:
    """Labels of a sample that are text; padding follows them."""
    if not config.ragged:
        return config.seq_len
    shortest = config.seq_len // 4
    draw = Random(f"{config.data_seed}/{index}/length").random
    return shortest + int(draw() * (config.seq_len - shortest + 1))


@injection_point
def make_sequence(config: TrainerConfig, index: int) -> Row:
    """The `seq_len` + 1 tokens of a sample, padded past its text."""
    lengths = tuple(_document_lengths(config, index))
    tokens = np.array(_text(config.vocab_size, config.data_seed, index, lengths))
    tokens[text_length(config, index) + 1 :] = PADDING
    return tokens


@injection_point
def shift_labels(text: Row) -> Row:
    """The label of each token but the last: the one after it."""
    return text[1:]


@injection_point
def loss_mask(documents: Row, length: int) -> NDArray[np.float32]:
    """1 for the labels within the text whose document is the token's own."""
    counted = documents[1:] == documents[:-1]
    counted[length:] = False
    return np.asarray(counted, dtype=np.float32)


@injection_point
def shift_again(labels: Row, mask: NDArray[np.float32]) -> tuple[Row, NDArray[np.float32]]:
    """Labels and mask of the multi-token module: one further on, without the last of a document."""
    return np.append(labels[1:], PADDING), np.append(mask[1:], np.float32(0)) * mask


def _document_lengths(config: TrainerConfig, index: int) -> list[int]:
    """Lengths of a sample's documents, `seq_len` + 1 in all: one, or some of 1/4 to 1/2 of the context and a rest."""
    left, quarter = config.seq_len + 1, config.seq_len // 4
    draw = Random(f"{config.data_seed}/{index}/documents").random
    lengths = []
    while config.packed and left > 2 * quarter:
        lengths.append(quarter + int(draw() * (quarter + 1)))
        left -= lengths[-1]
    return [*lengths, left]


@lru_cache(maxsize=16)
def _shuffled(seed: int, epoch: int, samples: int) -> tuple[int, ...]:
    draw = Random(f"{seed}/epoch {epoch}").random
    return tuple(sorted(range(samples), key=lambda _: draw()))


@lru_cache(maxsize=1 << 14)
def _text(vocab_size: int, seed: int, index: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Documents one after the other. Behind the injection points, so that a fault never enters the cache."""
    draw, spoken = Random(f"{seed}/{index}/text").random, language(vocab_size)
    return tuple(token for length in lengths for token in spoken.document(length, draw))
