"""Signals of tensors: the same for every layout, and able to see what they are for."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.signals import record
from attune_lab.signals.record import Piece
from attune_lab.signals.schema import SKETCHES
from attune_lab.trainer.pool import RankPool

MASK = 2**64 - 1


def splitmix64(seed, count):
    """The generator as published, in Python's integers."""
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def weights(size, seed=0, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_mixing_is_the_published_splitmix64():
    assert next(splitmix64(0, 1)) == 0xE220A8397B1DCDAF  # first output for seed 0 in the reference implementation
    states = torch.arange(1, 6) * record._GOLDEN
    assert [w % 2**64 for w in record._mixed(states).tolist()] == list(splitmix64(0, 5))


@given(st.integers(1, 300), st.lists(st.integers(0, 300), max_size=4), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(deadline=None, max_examples=60)
def test_totals_do_not_depend_on_the_shards(size, cuts, dtype):
    values, index = weights(size, size, dtype), torch.arange(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size))
    whole = record.totals([Piece("w", values, index)], ["w"], None)["w"]
    bounds = [0, *sorted(min(c, size) for c in cuts), size]
    shards = [order[a:b] for a, b in itertools.pairwise(bounds)]
    split = record.totals([Piece("w", values[s], index[s]) for s in shards], ["w"], None)["w"]
    assert whole[0] == pytest.approx(values.double().norm().item(), rel=1e-14)
    assert split[0] == pytest.approx(whole[0], rel=1e-13)
    assert split[1] == pytest.approx(whole[1], abs=1e-12 * size)


def test_long_tensors_are_treated_in_chunks(monkeypatch):
    values, index = weights(1000), torch.arange(1000)
    whole, bits, change = (
        record.sketch("w", values, index),
        record.checksum(values),
        record.square_sum(values, -values),
    )
    monkeypatch.setattr(record, "CHUNK", 64)
    assert record.sketch("w", values, index).tolist() == pytest.approx(whole.tolist(), abs=1e-11)
    assert record.checksum(values) == bits
    assert float(record.square_sum(values, -values)) == pytest.approx(float(change), rel=1e-13)


def test_signs_are_balanced_and_independent():
    codes = record._sign_codes("layers.0.mlp.fc1.weight", torch.arange(100_000)).long()
    signs = np.concatenate([record._SIGNS[c].numpy() for c in codes], axis=1).T
    assert signs.shape == (SKETCHES, 100_000)
    correlation = signs @ signs.T / signs.shape[1] - np.eye(SKETCHES)
    neighbours = (signs[:, 1:] * signs[:, :-1]).mean(1)
    limit = 5 / np.sqrt(signs.shape[1])  # five standard deviations
    assert np.abs(signs.mean(1)).max() < limit
    assert np.abs(correlation).max() < limit
    assert np.abs(neighbours).max() < limit


def test_sketch_estimates_the_distance_as_chi_square_says():
    """Relative Frobenius errors estimated from sketches against the known ones, over 400 names."""
    a, b, index = weights(2000, 1), weights(2000, 2), torch.arange(2000)
    true = float((a - b).double().norm() ** 2)
    ratios = [
        float((record.sketch(n, a, index) - record.sketch(n, b, index)).square().sum()) / true
        for n in map(str, range(400))
    ]
    assert scipy.stats.kstest(ratios, scipy.stats.chi2(SKETCHES).cdf).pvalue > 0.01


def test_changes_of_an_update():
    before = [Piece("a", torch.tensor([3.0, 4.0]), torch.arange(2)), Piece("b", weights(8), torch.arange(8))]
    after = [Piece("a", torch.tensor([3.0, 4.5]), torch.arange(2)), before[1]]
    found = record.changes(before, after, ["a", "b", "absent"], None)
    assert found["a"] == (0.5, 5.0, 0.5)
    assert found["b"] == (0.0, pytest.approx(before[1].values.double().norm().item()), 1.0)
    assert found["absent"] == (0.0, 0.0, 0.0)


def test_pieces_that_do_not_match_are_refused():
    piece = Piece("a", weights(4), torch.arange(4))
    with pytest.raises(KeyError, match="a"):
        record.totals([piece], ["b"], None)
    with pytest.raises(ValueError, match="a and b"):
        record.changes([piece], [Piece("b", piece.values, piece.index)], ["a", "b"], None)


def test_signs_are_computed_once_and_freed_with_their_index(monkeypatch):
    made = []
    monkeypatch.setattr(record, "_sign_codes", lambda n, i, real=record._sign_codes: made.append(n) or real(n, i))
    index = torch.arange(10)
    known = len(record._codes)
    for _ in range(3):
        record.sketch("x", weights(10), index)
    assert made == ["x"]
    del index
    assert len(record._codes) == known


rows = st.lists(st.lists(st.integers(0, 500), min_size=5, max_size=5), min_size=1, max_size=8)


@given(rows, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_multiset_hash_has_no_order(batch, random):
    shuffled = random.sample(batch, len(batch))
    first, second = (record.multiset_hash(record.row_hashes(torch.tensor(b)), None) for b in (batch, shuffled))
    assert first == second
    assert len(first) == 16


@given(rows, st.data())
@settings(deadline=None)
def test_row_hash_sees_one_flipped_bit(batch, data):
    tokens = torch.tensor(batch)
    row, column = data.draw(st.integers(0, len(batch) - 1)), data.draw(st.integers(0, 4))
    changed = tokens.clone()
    changed[row, column] ^= 1 << data.draw(st.integers(0, 40))
    before, after = record.row_hashes(tokens), record.row_hashes(changed)
    assert [a == b for a, b in zip(before, after, strict=True)] == [r != row for r in range(len(batch))]


def test_row_hashes_keep_rows_tensors_and_places_apart():
    tokens, mask = torch.tensor([[1, 2], [3, 4]]), torch.ones(2, 2)
    columns_swapped = torch.tensor([[3, 2], [1, 4]])  # the same tokens at the same places, in other sequences
    hashes = [
        record.multiset_hash(record.row_hashes(*t), None)
        for t in ((tokens,), (tokens.flip(1),), (columns_swapped,), (tokens, mask), (tokens, tokens), (tokens, -mask))
    ]
    assert len(set(hashes)) == len(hashes)
    assert record.row_hashes(tokens, mask) == record.row_hashes(tokens.int(), mask.bfloat16())


@given(st.integers(1, 40), st.data())
@settings(deadline=None)
def test_checksum_sees_one_flipped_bit_and_every_swap(size, data):
    values = weights(size, size, data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64])))
    bits = values.clone().view(torch.uint8)
    bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert record.checksum(bits.view(values.dtype)) != record.checksum(values)
    i, j = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    swapped = values.clone()
    swapped[[i, j]] = values[[j, i]]
    assert (record.checksum(swapped) == record.checksum(values)) == torch.equal(swapped, values)


def test_checksum_of_views_and_odd_shapes():
    matrix = weights((6, 5))
    assert record.checksum(matrix.T) == record.checksum(matrix.T.contiguous()) != record.checksum(matrix)
    assert record.checksum(matrix[1:, 1:]) == record.checksum(matrix[1:, 1:].clone())
    assert record.checksum(torch.tensor(0.0)) != record.checksum(torch.tensor(-0.0))
    assert record.checksum(torch.zeros(2)) != record.checksum(torch.zeros(3))


@given(st.integers(1, 40), st.data(), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
@settings(deadline=None)
def test_placed_hashes_of_parts_add_up_and_see_one_flipped_bit(size, data, dtype):
    values, cut = weights(size, size, dtype), data.draw(st.integers(0, size))
    whole = int(record.placed_hash(values))
    parts = int(record.placed_hash(values[:cut])) + int(record.placed_hash(values[cut:], cut))
    assert (whole - parts) % 2**64 == 0
    bits = values.clone().view(torch.uint8)
    bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert int(record.placed_hash(bits.view(dtype))) != whole


def found_by_two(rank, world_size):
    """What the collectives return on both ranks."""
    group = dist.group.WORLD
    values, index = weights(101), torch.arange(101)
    mine = slice(0, 40) if rank == 0 else slice(40, None)
    pieces = [Piece("w", values[mine], index[mine])] + [Piece("last stage", values, index)] * rank
    found = (
        record.totals(pieces, ["w", "last stage"], group),
        record.multiset_hash([2**64 - 1, 5] if rank == 0 else [7], group),
        record.replica_differences(
            {"same": values, "apart": values + rank, "sign": torch.zeros(3) * (1 - 2 * rank)}, group, "tp"
        ),
    )
    everyone = [None] * world_size
    dist.all_gather_object(everyone, found)
    return everyone


def test_two_processes_add_up():
    """Collectives for real: what two ranks find together is what one process finds alone, on both ranks."""
    with RankPool(2) as pool:
        first, second = pool.run(found_by_two)
    assert first == second
    alone = record.totals(
        [Piece(n, weights(101), torch.arange(101)) for n in ("w", "last stage")], ["w", "last stage"], None
    )
    for name, (norm, signs) in first[0].items():
        assert norm == pytest.approx(alone[name][0], rel=1e-13)
        assert signs == pytest.approx(alone[name][1], abs=1e-11)
    assert first[1] == f"{2**64 - 1 + 5 + 7 - 2**64:016x}"
    assert first[2] == ("tp: apart", "tp: sign")
