"""Enumeration against brute force: one layout at a time, rules and dominance by definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulator.enumeration import SIZES, Space, cheapest_layouts, declare, enumerate_layouts, pareto_front
from simulator.hardware import parse_cluster
from simulator.job import DEFAULTS, Dispatcher, Recompute, make_jobs
from simulator.legality import legal
from simulator.models import model
from simulator.step import simulate_step

CHOICES = {
    "tp": [1, 2, 3], "pp": [1, 2], "vpp": [1, 2], "ep": [2, 8], "mbs": [1, 2], "gbs": [64, 128], "seq_len": 4096,
    "recompute": [Recompute.NONE, Recompute.MOE, Recompute.FULL], "ep_overlap": [False, True],
    "dispatcher": Dispatcher.ALLTOALL,
}  # fmt: skip


def space(**choices: object) -> Space:
    return declare(model("mixtral-8x7b"), parse_cluster("16xH100-SXM5-80GB"), **{**CHOICES, **choices})


def one_at_a_time(declared: Space) -> list[tuple[float, float, float]]:
    """Figures of every legal layout of `CHOICES` that fits, from nested loops and single jobs."""
    shape, cluster = declared.model, declared.cluster
    found = []
    for values in itertools.product(*(np.atleast_1d(value) for value in CHOICES.values())):
        columns = dict(zip(CHOICES, values, strict=True))
        row = {name: np.asarray(value) for name, value in {**DEFAULTS, **columns}.items()}
        if not legal(row, shape, cluster.n_gpus):
            continue
        step = simulate_step(make_jobs(shape, cluster, **columns))
        seconds, peak = float(step.step_time_s[0]), float(step.peak_reserved_bytes.max())
        if peak <= cluster.accelerator.memory_bytes:
            found.append((seconds, peak, seconds * cluster.n_gpus / float(columns["gbs"] * columns["seq_len"])))
    return found


def betters(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def test_best_and_front_are_those_of_brute_force() -> None:
    declared = space()
    result = enumerate_layouts(declared, count=7, chunk=50)
    layouts = one_at_a_time(declared)
    assert 20 < result.fitting == len(layouts) < result.legal < declared.size
    assert result.best.gpu_s_per_token == pytest.approx(sorted(cost for *_, cost in layouts)[:7], rel=1e-9)
    front = sorted({one for one in layouts if not any(betters(other, one) for other in layouts)})
    assert result.front.figures == pytest.approx(np.array(front), rel=1e-9)


@pytest.mark.parametrize(("count", "chunk"), [(1, 7), (9, 7), (9, 64), (50, 10_000), (1000, 64)])
@pytest.mark.parametrize("memory_limit", [1.0, 0.7, 0.01])
def test_the_cheapest_are_the_best_of_the_whole_space(count, chunk, memory_limit) -> None:
    declared = space()
    no_dearer = np.arange(6) % 2  # levers are recompute x ep_overlap: the same without recomputation
    assert declared.levers["recompute"][no_dearer].tolist() == [Recompute.NONE] * 6
    assert (declared.levers["ep_overlap"][no_dearer] == declared.levers["ep_overlap"]).all()
    usual = enumerate_layouts(declared, count=count, memory_limit=memory_limit).best
    found = cheapest_layouts(declared, no_dearer, count=count, memory_limit=memory_limit, chunk=chunk)
    assert found.index.tolist() == usual.index.tolist()
    assert found.figures == pytest.approx(usual.figures, rel=1e-12)


def test_no_cheapest_where_nothing_is_legal() -> None:
    assert cheapest_layouts(space(tp=3), np.arange(6) % 2, count=3).index.size == 0


def test_the_places_lead_back_to_the_layouts() -> None:
    declared = space()
    for layouts in vars(enumerate_layouts(declared, count=5)).values():
        if isinstance(layouts, int):
            continue
        step = simulate_step(declared.jobs(layouts.index))
        assert layouts.step_time_s == pytest.approx(step.step_time_s, rel=1e-9)
        assert layouts.peak_bytes == pytest.approx(step.peak_reserved_bytes.max(axis=1), rel=1e-9)


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
def test_chunks_do_not_matter(chunk) -> None:
    declared = space()
    result, usual = enumerate_layouts(declared, count=9, chunk=chunk), enumerate_layouts(declared, count=9)
    assert (result.legal, result.fitting) == (usual.legal, usual.fitting)
    for some, same in ((result.best, usual.best), (result.front, usual.front)):
        assert some.index.tolist() == same.index.tolist()
        assert some.figures == pytest.approx(same.figures, rel=1e-12)


def test_less_memory_leaves_fewer() -> None:
    whole, less = enumerate_layouts(space()), enumerate_layouts(space(), memory_limit=0.9)
    assert 0 < less.fitting < whole.fitting
    assert less.front.peak_bytes.max() <= 0.9 * space().cluster.accelerator.memory_bytes


def test_nothing_legal_is_an_empty_answer() -> None:
    nothing = enumerate_layouts(space(gbs=7))
    assert (nothing.legal, nothing.best.index.size, nothing.front.index.size) == (0, 0, 0)


def test_sizes_are_every_legal_combination_once() -> None:
    declared = space()
    names = [name for name in SIZES if name in CHOICES]
    expected = [
        row
        for row in itertools.product(*(np.atleast_1d(CHOICES[name]) for name in names))
        if legal(
            {**{n: np.asarray(DEFAULTS.get(n)) for n in SIZES}, **dict(zip(names, map(np.asarray, row), strict=True))},
            declared.model,
            declared.cluster.n_gpus,
        )
    ]
    assert list(zip(*(declared.sizes[name] for name in names), strict=True)) == expected


def test_unknown_and_missing_columns_are_named() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        space(nonsense=1)
    with pytest.raises(TypeError, match="seq_len"):
        declare(model("mixtral-8x7b"), parse_cluster("16xH100-SXM5-80GB"), gbs=1)


def test_memory_is_that_of_a_chunk() -> None:
    import tracemalloc

    few, many = space(gbs=64), space(gbs=64, cuda_graph=range(32))
    peaks = []
    for declared in (few, many):
        tracemalloc.start()
        enumerate_layouts(declared, chunk=32)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert many.size == 32 * few.size
    assert peaks[1] < 1.5 * peaks[0]


@settings(deadline=None, max_examples=200)
@given(arrays(np.float64, st.tuples(st.integers(0, 30), st.integers(1, 4)), elements=st.integers(0, 5)))
def test_front_is_complete_and_nothing_in_it_is_bettered(figures) -> None:
    front = pareto_front(figures)
    kept = figures[front].tolist()
    assert sorted(kept) == kept
    assert len({tuple(row) for row in kept}) == len(kept)
    best = {tuple(row) for row in figures.tolist() if not any(betters(other, row) for other in figures.tolist())}
    assert {tuple(row) for row in kept} == best
    for place in front:
        assert figures.tolist().index(figures[place].tolist()) == place
