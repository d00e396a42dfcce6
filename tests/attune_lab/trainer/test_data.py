"""Every layout reads the same samples, without state; labels, masks and positions say what the text is."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.trainer import data
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import patched
from attune_lab.trainer.language import PADDING, language

configs = st.builds(
    TrainerConfig,
    seq_len=st.sampled_from([4, 16, 50, 64]),
    vocab_size=st.sampled_from([8, 20, 512]),
    data_seed=st.integers(-3, 2**40),
    ragged=st.booleans(),
    packed=st.booleans(),
)
layouts = st.sampled_from([(1, 1), (1, 4), (2, 2), (4, 4), (8, 2), (16, 1)])
indices = st.integers(0, 4095)


def rows(config, step):
    batches = [data.load(config, step, rank, i) for rank in range(config.dp) for i in range(config.microbatches)]
    columns = [torch.cat([getattr(batch, name) for batch in batches]).tolist() for name in data.Batch._fields]
    return Counter(map(str, zip(*columns, strict=True)))


@given(st.integers(1, 600), layouts, configs)
def test_every_layout_trains_on_the_same_global_batch(step, layout, config):
    dp, mbs = layout
    alone = config.model_copy(update={"gbs": 16, "mbs": 16, "dp": 1})
    assert rows(config.model_copy(update={"gbs": 16, "mbs": mbs, "dp": dp}), step) == rows(alone, step)


@given(st.integers(1, 20), st.integers(1, 7))
def test_ranks_and_micro_batches_share_out_consecutive_places(step, samples_per_epoch):
    """The order of Megatron-LM's sampler: mbs places to each rank in turn, then the next micro-batch."""
    config = TrainerConfig(gbs=12, mbs=2, dp=3, samples_per_epoch=samples_per_epoch)
    read = [
        index
        for microbatch in range(config.microbatches)
        for rank in range(config.dp)
        for index in data.sample_indices(config, step, rank, microbatch)
    ]
    assert read == [data.sample_at(config, place) for place in range((step - 1) * 12, step * 12)]


@given(st.integers(1, 300), st.integers(0, 5))
def test_an_epoch_reads_every_sample_once_in_an_order_of_its_own(samples, epoch):
    config = TrainerConfig(samples_per_epoch=samples)
    order = data.epoch_order(config, epoch)
    assert sorted(order) == list(range(samples))
    if samples > 20:
        assert order != data.epoch_order(config, epoch + 1)
        assert order != data.epoch_order(config.model_copy(update={"data_seed": 2}), epoch)


def test_a_resumed_run_goes_on_where_it_stopped():
    """No call depends on an earlier one: with every cache empty, a late step is what it was in sequence."""
    config = TrainerConfig(samples_per_epoch=50, packed=True, ragged=True)
    through = [data.load(config, step, 0, 3) for step in range(1, 11)]
    for cache in (data._shuffled, data._text, language):
        cache.cache_clear()
    for once, again in zip(through[-1], data.load(config, 10, 0, 3), strict=True):
        assert torch.equal(once, again)


@given(configs, indices)
def test_labels_are_the_text_one_token_on(config, index):
    batch = data.sample(config, index)
    assert all(tensor.shape == (1, config.seq_len) for tensor in batch)
    assert torch.equal(batch.labels[:, :-1], batch.tokens[:, 1:])
    assert torch.equal(batch.next_tokens, batch.labels)
    assert torch.equal(batch.next_labels[:, :-1], batch.labels[:, 1:])
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < config.vocab_size


@given(configs, indices)
def test_masks_end_where_text_and_documents_end(config, index):
    batch = data.sample(config, index)
    documents, counted = batch.documents[0].tolist(), batch.mask[0].tolist()
    length = data.text_length(config, index)
    for t in range(config.seq_len - 1):
        assert counted[t] == (t < length and documents[t] == documents[t + 1])
        assert batch.next_mask[0, t] == counted[t] * counted[t + 1]
    assert batch.next_mask[0, -1] == 0
    assert (batch.labels[batch.mask == 1] != PADDING).all()
    assert (batch.next_labels[batch.next_mask == 1] != PADDING).all()
    assert (batch.tokens[0, length + 1 :] == PADDING).all()


@given(configs, indices)
def test_documents_are_consecutive_and_positions_start_again_in_each(config, index):
    batch = data.sample(config, index)
    documents, positions = batch.documents[0].tolist(), batch.positions[0].tolist()
    assert documents[0] == positions[0] == 0
    for t in range(1, config.seq_len):
        new = documents[t] - documents[t - 1]
        assert new in (0, 1)
        assert positions[t] == (0 if new else positions[t - 1] + 1)
    if not config.packed:
        assert documents[-1] == 0


def test_lengths_are_uniform_from_a_quarter_to_the_whole_context():
    config = TrainerConfig(ragged=True, seq_len=8)
    counts = Counter(int(data.sample(config, index).mask.sum()) for index in range(4000))
    assert sorted(counts) == list(range(2, 9))
    expected = 4000 / 7
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 22.5  # chi-square, 6 degrees, p = 0.001


@pytest.mark.parametrize("packed", [False, True])
def test_every_document_opens_with_its_key(packed):
    config = TrainerConfig(packed=packed)
    batch = data.assemble(config, range(200))
    starts = batch.tokens[batch.positions == 0]
    assert set(starts.tolist()) == set(language(config.vocab_size).keys)
    assert (len(starts) > 400) == packed


def test_a_fault_is_gone_after_the_run_it_was_put_in():
    config = TrainerConfig()
    before = data.load(config, 1, 0, 0)
    with patched({"data.make_sequence": lambda original, *arguments: original(*arguments) * 0}):
        assert not data.load(config, 1, 0, 0).tokens.any()
    assert torch.equal(data.load(config, 1, 0, 0).tokens, before.tokens)
