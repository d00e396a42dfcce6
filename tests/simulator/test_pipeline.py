import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.events import schedule, simulate_pipeline
from simulator.pipeline import exposed_sends, pipeline_seconds

sizes = {"stages": st.integers(1, 6), "chunks": st.integers(1, 3), "groups": st.integers(1, 3)}
UNEVEN_EXCESS = 0.24  # worst of all corners of 0.7 to 1.3 with up to six stages and as few micro-batches as stages


def closed(stage, microbatches, chunks):
    return float(pipeline_seconds(np.atleast_2d(stage), np.array([microbatches]), np.array([chunks]))[0])


@given(**sizes, forward=st.floats(0.1, 2), backward=st.floats(0.1, 4))
@settings(deadline=None, max_examples=60)
def test_even_stages_are_exact(stages, chunks, groups, forward, backward):
    chunks = chunks if stages > 1 else 1
    microbatches = stages * groups
    event = simulate_pipeline([forward] * stages, [backward] * stages, microbatches, chunks=chunks)
    assert closed([forward + backward] * stages, microbatches, chunks) == pytest.approx(event, rel=1e-9)


@given(data=st.data(), stages=st.integers(2, 6), chunks=st.integers(1, 3), groups=st.integers(1, 4))
@settings(deadline=None, max_examples=80)
def test_uneven_stages_are_bounded(data, stages, chunks, groups):
    forward = np.array(data.draw(st.lists(st.floats(0.7, 1.3), min_size=stages, max_size=stages)))
    microbatches = stages * groups
    event = simulate_pipeline(list(forward), list(2 * forward), microbatches, chunks=chunks)
    excess = closed(3 * forward, microbatches, chunks) / event - 1
    assert -1e-9 <= excess <= UNEVEN_EXCESS


@given(stages=st.integers(2, 6), chunks=st.integers(1, 3), groups=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_sends_equal_the_event_simulation(stages, chunks, groups):
    microbatches = stages * groups
    even = [1.0] * stages
    without, with_sends = (simulate_pipeline(even, even, microbatches, chunks=chunks, send=s) for s in (0.0, 0.01))
    count = exposed_sends(np.array([microbatches]), np.array([stages]), np.array([chunks]), np.array([True]))[0]
    assert with_sends - without == pytest.approx(0.01 * count, rel=1e-6)


@given(**sizes)
def test_every_stage_runs_every_pass_once_and_in_order(stages, chunks, groups):
    chunks = chunks if stages > 1 else 1
    for stage in range(stages):
        order = schedule(stage, stages, chunks, stages * groups)
        assert len(order) == len(set(order)) == 2 * chunks * stages * groups
        seen = set()
        for task in order:
            assert task.forward or (True, task.chunk, task.microbatch) in seen
            seen.add(tuple(task))


def test_published_bubble():
    """arXiv 2104.04473: idle over ideal time is (p - 1) / (v m)."""
    for stages, chunks, microbatches in [(8, 1, 64), (8, 4, 64)]:
        ideal = 3.0 * microbatches
        assert closed([3.0] * stages, microbatches, chunks) / ideal - 1 == pytest.approx(
            (stages - 1) / (chunks * microbatches)
        )
