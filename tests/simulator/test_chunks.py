"""Large batches are priced in chunks, which nobody can see."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.chunks import CHUNK, chunks
from simulator.hardware import parse_cluster
from simulator.job import Jobs, make_jobs, once
from simulator.models import model
from simulator.step import StepEstimate, simulate_step


def jobs(count: int) -> Jobs:
    random = np.random.default_rng(0)
    return make_jobs(
        model("mixtral-8x7b"), parse_cluster("64xH100-SXM5-80GB"), gbs=256, seq_len=4096, ep=8,
        pp=random.choice((1, 2, 4), count), vpp=random.choice((1, 2), count), mbs=random.choice((1, 2), count),
    )  # fmt: skip


def figures(step: StepEstimate) -> list[np.ndarray]:
    values = [list(one.values()) if isinstance(one, dict) else [one] for one in vars(step).values()]
    return [array for arrays in values for array in arrays]


@given(st.integers(0, 50), st.integers(1, 60))
def test_chunks_cover_everything_once_in_order(size, length):
    assert [i for chunk in chunks(size, length) for i in range(size)[chunk]] == list(range(size))
    assert all(chunk.stop - chunk.start == length for chunk in chunks(size, length))


def test_a_large_batch_is_priced_like_its_parts():
    batch = jobs(CHUNK + 7)
    whole = figures(simulate_step(batch))
    for part in (slice(0, CHUNK), slice(CHUNK, CHUNK + 7)):
        for one, same in zip(whole, figures(simulate_step(batch.take(part))), strict=True):
            np.testing.assert_array_equal(one[part], same)


def test_what_is_computed_once_follows_the_batch_and_the_constants():
    calls = []

    @once
    def doubled(batch: Jobs, constants: object) -> np.ndarray:
        calls.append(constants)
        return 2 * batch.pp

    batch, one, other = jobs(3), object(), object()
    assert doubled(batch, one) is doubled(batch, one)
    doubled(batch, other)
    doubled(batch.take([0, 1]), other)
    assert calls == [one, other, other]
