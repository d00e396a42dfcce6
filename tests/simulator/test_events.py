"""The event simulation itself: orders against torch's, and what a played step must look like."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.events import Disturbance, Kind, Placement, Step, order, play
from simulator.job import Schedule

# Each schedule with numbers of stages, chunks and micro-batches per stage that it can work with.
SHAPES = [
    (schedule, stages, chunks, rounds * stages)
    for schedule in Schedule
    for stages in (2, 4, 6)
    for chunks in ((1, 2, 3) if schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1) else (1,))
    for rounds in (2, 3)
]


@pytest.mark.parametrize(
    ("name", "schedule", "chunks"),
    [
        ("ScheduleInterleaved1F1B", Schedule.ONE_F_ONE_B, 2),
        ("ScheduleInterleaved1F1B", Schedule.ONE_F_ONE_B, 3),
        ("ScheduleInterleavedZeroBubble", Schedule.ZB_H1, 1),
        ("ScheduleInterleavedZeroBubble", Schedule.ZB_H1, 2),
        ("ScheduleZBVZeroBubble", Schedule.ZB_V, 2),
        ("ScheduleDualPipeV", Schedule.DUALPIPE_V, 2),
    ],
)
def test_orders_are_those_of_torch(name, schedule, chunks):
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for stages in (1, 2, 3, 4, 6):
        for microbatches in (2 * stages, 3 * stages):
            theirs = object.__new__(getattr(pipelining, name))  # its constructor wants a process group
            theirs.pp_group_size, theirs._n_microbatches, theirs.n_local_stages = stages, microbatches, chunks
            theirs.num_stages = theirs._num_stages = stages * chunks
            theirs.number_of_rounds, theirs.microbatches_per_round = microbatches // stages, stages
            placement = Placement.of(schedule, stages, chunks, microbatches)
            for stage in range(stages):
                actions = filter(None, theirs._calculate_single_rank_operations(stage))
                expected = [
                    [(a.computation_type.value, a.stage_index, a.microbatch_index) for a in one.sub_actions or [one]]
                    for one in actions
                ]
                groups = order(schedule, stage, stages, chunks, microbatches)
                assert expected == [
                    [(t.kind, placement.position(stage, t.chunk), t.microbatch) for t in group] for group in groups
                ]


@pytest.mark.parametrize(("schedule", "stages", "chunks", "microbatches"), SHAPES)
def test_every_stage_runs_every_pass_once_and_in_order(schedule, stages, chunks, microbatches):
    crossed = 1 if schedule == Schedule.DUALPIPE else 2 if schedule in (Schedule.ZB_V, Schedule.DUALPIPE_V) else chunks
    for stage in range(stages):
        forward, backward, weight = set(), set(), set()
        for task in (t for group in order(schedule, stage, stages, chunks, microbatches) for t in group):
            key = (task.chunk, task.microbatch)
            done = {Kind.FORWARD: forward, Kind.WEIGHT: weight}.get(task.kind, backward)
            assert key not in done
            assert task.kind == Kind.FORWARD or key in forward
            assert task.kind != Kind.WEIGHT or key in backward
            done.add(key)
            if task.kind == Kind.BACKWARD:
                weight.add(key)
        assert len(forward) == len(backward) == len(weight) == crossed * microbatches


@st.composite
def played(draw):
    schedule, stages, chunks, microbatches = draw(st.sampled_from(SHAPES))
    forward = draw(st.lists(st.floats(0.5, 2), min_size=stages, max_size=stages))
    step = Step(
        forward, [2 * x for x in forward], forward, microbatches, schedule, chunks, send=draw(st.floats(0, 0.1)),
        before=[("gather", [0.1] * stages)], after=[("reduce", forward)],
        together=[("norm", [0.2] * stages), ("optimizer", forward)],
    )  # fmt: skip
    jitter, slow = draw(st.floats(0, 0.2)), draw(st.lists(st.floats(1, 1.5), min_size=stages, max_size=stages))
    return step, Disturbance(slowness=slow, jitter=jitter, seed=draw(st.integers(0, 9)))


@given(played())
@settings(deadline=None, max_examples=60)
def test_what_a_step_looks_like(case):
    step, disturbance = case
    run = play(step, disturbance)
    assert run == play(step, disturbance)
    assert run.failed_stage is None
    assert max(r.end for r in run.recorded) == run.seconds
    lanes = defaultdict(list)
    for r in run.recorded:
        lanes[r.stage, r.to].append((r.start, r.end))
    for spans in lanes.values():
        spans.sort()
        assert all(one[1] <= after[0] + 1e-12 for one, after in pairwise(spans))
    for stage in range(len(step.forward)):
        own = [r.kind for r in run.recorded if r.stage == stage and r.kind != "send"]
        assert own[0] == "gather"
        assert own[-3:] == ["reduce", "norm", "optimizer"]
    norms = [r.start for r in run.recorded if r.kind == "norm"]
    assert max(norms) - min(norms) < 1e-12  # nobody starts it before all are there
    assert min(norms) >= max(r.end for r in run.recorded if r.kind == "reduce")


@given(played())
@settings(deadline=None, max_examples=30)
def test_a_slow_stage_never_helps(case):
    """True of a fixed order of passes; jitter left out."""
    step, disturbance = case
    slow = play(step, Disturbance(slowness=disturbance.slowness)).seconds
    assert slow >= play(step).seconds - 1e-9
    assert slow <= play(step).seconds * max(disturbance.slowness) + 1e-9


def test_a_failure_ends_the_run():
    step = Step([1.0] * 4, [2.0] * 4, [1.0] * 4, 8)
    run = play(step, Disturbance(failure=(2, 7.5)))
    assert (run.failed_stage, run.seconds) == (2, 7.5)
    assert run.recorded
    assert all(r.end <= 7.5 for r in run.recorded)
    assert play(step, Disturbance(failure=(2, 1e9))) == play(step)


def test_links_carry_one_transfer_a_direction():
    """Passes shorter than a transfer: the link becomes the bottleneck, one micro-batch after the other."""
    run = play(Step([0.1, 0.1], [0.1, 0.1], [0.0, 0.0], 8, Schedule.GPIPE, send=1.0))
    assert run.seconds == pytest.approx(0.2 + 8.0 + 8.0 + 0.2)


@pytest.mark.parametrize(
    ("stages", "microbatches", "schedule", "chunks"),
    [(0, 4, 0, 1), (2, 0, 0, 1), (2, 3, 0, 2), (4, 6, 4, 1), (3, 12, 4, 1), (2, 5, 4, 1), (4, 6, 5, 1)],
)
def test_impossible_shapes_are_refused(stages, microbatches, schedule, chunks):
    with pytest.raises(ValueError, match="micro-batches"):
        play(Step([1.0] * stages, [1.0] * stages, [0.0] * stages, microbatches, Schedule(schedule), chunks))
