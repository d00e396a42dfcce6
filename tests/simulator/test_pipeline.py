"""The closed forms against the event simulation of the same schedules, and against published bubbles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.events import Disturbance, Kind, Step, order, play
from simulator.hardware import parse_cluster
from simulator.job import Schedule, make_jobs
from simulator.models import model
from simulator.pipeline import Passes, Pipelines, held_by_rank, in_flight, pipeline_seconds, pipeline_times

SPLIT = (Schedule.ZB_H1, Schedule.ZB_V, Schedule.DUALPIPE, Schedule.DUALPIPE_V)
LOOPED = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1)


def closed(step):
    passes = [np.atleast_2d(np.asarray(a, dtype=float)) for a in (step.forward, step.backward, step.weight)]
    if step.schedule == Schedule.DUALPIPE:  # a rank has the average of its two stages
        passes = [(a + a[:, ::-1]) / 2 for a in passes]
    columns = (step.schedule, len(step.forward), step.chunks, step.microbatches)
    return float(pipeline_seconds(Pipelines(*(np.array([int(c)]) for c in columns)), Passes(*passes), step.send)[0])


def excess(step):
    """Of the closed form over the event simulation, relative."""
    return closed(step) / play(step).pipeline_seconds - 1


@st.composite
def steps(draw, schedules=tuple(Schedule), even=False, free=True, rounds=(2, 4)):
    schedule = draw(st.sampled_from(schedules))
    stages = draw(st.sampled_from([2, 4, 6] if schedule == Schedule.DUALPIPE else [1, 2, 3, 4, 5, 6]))
    chunks = draw(st.integers(1, 3)) if schedule in LOOPED and stages > 1 else 1
    spread = [1.0] * stages if even else draw(st.lists(st.floats(0.7, 1.3), min_size=stages, max_size=stages))
    backward = draw(st.floats(1.5, 2.5))
    weight = backward * draw(st.floats(0.3, 0.5))
    send = 0.0 if free else draw(st.floats(0.0, 0.03)) / chunks
    return Step(
        spread, [backward * x for x in spread], [weight * x for x in spread],
        stages * draw(st.integers(*rounds)), schedule, chunks, send,
    )  # fmt: skip


@given(steps(even=True))
@settings(deadline=None, max_examples=80)
def test_even_stages_are_exact(step):
    assert excess(step) == pytest.approx(0, abs=1e-9)


@given(st.data(), st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE]), st.integers(1, 6), st.integers(1, 13))
@settings(deadline=None, max_examples=120)
def test_plain_schedules_are_exact_whatever_the_stages(data, schedule, stages, microbatches):
    forward, backward = (
        data.draw(st.lists(st.floats(0.1, 4), min_size=stages, max_size=stages)) for _ in ("forward", "backward")
    )
    step = Step(forward, backward, [0.0] * stages, microbatches, schedule)
    assert excess(step) == pytest.approx(0, abs=1e-9)


@given(steps((Schedule.ONE_F_ONE_B,), rounds=(1, 4)))
@settings(deadline=None, max_examples=80)
def test_uneven_interleaving_is_hardly_low_and_never_high(step):
    assert -0.02 <= excess(step) <= 1e-9


@given(steps(SPLIT))
@settings(deadline=None, max_examples=80)
def test_uneven_stages_of_the_other_schedules(step):
    assert abs(excess(step)) <= 0.10


@given(steps((Schedule.ONE_F_ONE_B, Schedule.GPIPE), free=False))
@settings(deadline=None, max_examples=80)
def test_short_transfers(step):
    assert abs(excess(step)) <= 0.02


@given(steps(SPLIT, even=True, free=False))
@settings(deadline=None, max_examples=60)
def test_short_transfers_of_the_other_schedules(step):
    assert abs(excess(step)) <= 0.02


@given(steps((Schedule.ONE_F_ONE_B,), even=True), st.floats(0.01, 0.1), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_jitter_costs_about_its_spread(step, jitter, seed):
    """Every pass varies by ``jitter``: stages wait for one another, so that a step takes up to so much longer."""
    noisy = play(step, Disturbance(jitter=jitter, seed=seed)).pipeline_seconds
    assert -2 * jitter <= noisy / closed(step) - 1 <= 3 * jitter


@given(st.lists(steps(), min_size=2, max_size=5))
@settings(deadline=None, max_examples=40)
def test_a_batch_equals_its_pipelines(batch):
    """Schedules and depths mixed, shorter pipelines padded with zeros."""
    depth = max(len(step.forward) for step in batch)

    def padded(name):
        return np.array([list(getattr(s, name)) + [0.0] * (depth - len(s.forward)) for s in batch])

    columns = [(int(s.schedule), len(s.forward), s.chunks, s.microbatches) for s in batch]
    passes = Passes(*(padded(name) for name in ("forward", "backward", "weight")))
    together = pipeline_seconds(Pipelines(*np.array(columns).T), passes)
    for i, step in enumerate(batch):
        own = slice(0, len(step.forward))
        alone = Passes(*(a[i : i + 1, own] for a in (passes.forward, passes.backward, passes.weight)))
        pipelines = Pipelines(*np.array(columns[i : i + 1]).T)
        assert pipeline_seconds(pipelines, alone)[0] == pytest.approx(together[i], rel=1e-12)


def even(schedule, stages, microbatches, chunks=1, passes=(1.0, 2.0, 1.0)):
    return closed(Step(*([x] * stages for x in passes), microbatches, schedule, chunks)) - microbatches * sum(
        passes[:2]
    )


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(8, 1, 64), (8, 4, 64), (16, 2, 32)])
def test_published_bubbles(stages, chunks, microbatches):
    """arXiv 2104.04473: (p - 1) (F + B) / v; 2401.10241 Table 1: (p - 1) (F + B - W); 2412.19437 Table 2, with F,
    input and weight gradient equal: (p/2 - 1) (F + B + B - 3 W)."""
    assert even(Schedule.ONE_F_ONE_B, stages, microbatches, chunks) == pytest.approx((stages - 1) * 3 / chunks)
    assert even(Schedule.GPIPE, stages, microbatches) == pytest.approx((stages - 1) * 3)
    assert even(Schedule.ZB_H1, stages, microbatches) == pytest.approx((stages - 1) * (1 + 1 - 1))
    assert even(Schedule.DUALPIPE, stages, microbatches) == pytest.approx((stages / 2 - 1) * (3 + 2 - 3))


def test_zero_bubble_is_zero_on_every_stage_but_not_for_a_synchronised_optimizer():
    """Every stage of ZB-V is busy from its first to its last pass (arXiv 2405.15362), but stages start one after the
    other, and the norm of all gradients waits for the last."""
    run = play(Step([1.0] * 4, [2.0] * 4, [1.0] * 4, 16, Schedule.ZB_V))
    for stage in range(4):
        passes = [r for r in run.recorded if r.stage == stage]
        assert max(r.end for r in passes) - min(r.start for r in passes) == pytest.approx(16 * 3)
    assert even(Schedule.ZB_V, 4, 16) == pytest.approx(3 / 2)


@pytest.mark.parametrize("stages", [3, 4])
def test_dualpipe_refuses_what_does_not_fill_it(stages):
    with pytest.raises(ValueError, match=r"DualPipe needs .*; (change|raise) "):
        even(Schedule.DUALPIPE, stages, 2 * stages - 2)


def test_blocking_transfers_cost_each_stage_its_own():
    columns = {"pp": 4, "vpp": 2, "gbs": 64, "seq_len": 4096, "overlap_p2p": [True, False]}
    jobs = make_jobs(model("llama-3-70b"), parse_cluster("32xH100-SXM5-80GB"), **columns)
    one = np.ones((2, 4))
    free, shown = pipeline_times(jobs, Passes(one, 2 * one, one), np.full(2, 0.01))
    run = play(Step([1.0] * 4, [2.0] * 4, [1.0] * 4, int(jobs.num_microbatches[1]), chunks=2, send=0.01, blocking=True))
    assert free[1] + shown[1] == pytest.approx(run.pipeline_seconds, rel=0.005)
    assert shown[1] > shown[0]


def held_in(tasks):
    """Peak of the passes forward that still wait for their weight gradients."""
    change = [1 if t.kind == Kind.FORWARD else 0 if t.kind == Kind.INPUT else -1 for group in tasks for t in group]
    return np.cumsum(change).max()


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (4, 3), (8, 2)])
def test_in_flight_equals_the_orders(schedule, pp, vpp):
    chunks = vpp if schedule in LOOPED else 2
    for rounds in (2, 5):
        columns = {"pp": pp, "vpp": vpp, "gbs": rounds * 8 * pp // pp * pp, "seq_len": 4096, "schedule": schedule}
        jobs = make_jobs(model("llama-3-70b"), parse_cluster(f"{8 * pp}xH100-SXM5-80GB"), **columns)
        count = int(jobs.num_microbatches[0])
        counted = [held_in(order(schedule, stage, pp, vpp, count)) / chunks for stage in range(pp)]
        closed_form = in_flight(jobs)[0]
        assert np.all(closed_form >= np.array(counted) - 1e-9)
        assert closed_form.max() == pytest.approx(max(counted))
        if schedule in LOOPED:
            assert closed_form == pytest.approx(counted)


def test_a_dualpipe_rank_holds_its_stage_and_the_mirrored_one():
    columns = {"pp": [4, 2, 4], "gbs": 256, "seq_len": 4096, "schedule": [Schedule.DUALPIPE, Schedule.DUALPIPE, 0]}
    jobs = make_jobs(model("llama-3-70b"), parse_cluster("32xH100-SXM5-80GB"), **columns)
    stage = np.array([[1.0, 2, 3, 4], [1, 2, 0, 0], [1, 2, 3, 4]])
    assert held_by_rank(jobs, stage).tolist() == [[5, 5, 5, 5], [3, 3, 0, 0], [1, 2, 3, 4]]
