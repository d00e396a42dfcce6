"""The summary of a log, and the log against our own timing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import RunReport
from attune_lab.logs import LoggedStep, TrainingLog, cross_check, read_log, summarise
from attune_lab.logs.summary import timed_steps
from tests.attune_lab.logs.printed import Step, megatron

TIMES = (9.0, 3.0, 2.0, 2.0, 2.1, 1.9, 2.0, 2.0)


def logged(times=TIMES, **columns):
    return tuple(LoggedStep(i, step_time_s=t, **columns) for i, t in enumerate(times, 1))


def report(times=TIMES, **fields):
    return RunReport(
        label="x",
        status="ok",
        provenance="simulated",
        steps=len(times),
        step_times_s=times,
        tokens_per_step=1000,
        tokens_per_s_per_gpu=62.5,
        **fields,
    )


def test_warm_up_is_not_timed():
    said = summarise(TrainingLog("x", logged()))
    assert said.timed_steps == 5
    assert said.step_time_s == 2.0
    assert summarise(TrainingLog("x", logged()), warmup=0).timed_steps == 8


@given(first=st.integers(1, 10**6), stride=st.integers(1, 100), count=st.integers(2, 30), warmup=st.integers(1, 20))
def test_a_timed_line_stands_for_no_step_of_the_warm_up(first, stride, count, warmup):
    steps = tuple(LoggedStep(first + stride * i) for i in range(count))
    start = first - stride  # the step before those of the first line
    timed = timed_steps(steps, warmup)
    covered = {step for line in timed for step in range(line.step - stride + 1, line.step + 1)}
    assert covered == {step for step in range(start + 1, steps[-1].step + 1)} - {
        step
        for line in steps
        for step in range(line.step - stride + 1, line.step + 1)
        if line.step - stride < start + warmup
    }


def test_tokens_come_from_the_log_or_from_what_the_user_says():
    assert summarise(TrainingLog("x", logged())).tokens_per_s_per_gpu is None
    said = summarise(TrainingLog("x", logged()), gpus=8, tokens_per_step=1000)
    assert (said.tokens_per_s_per_gpu, said.tokens_per_s, said.tokens_from) == (62.5, 500.0, "step time")
    claimed = summarise(TrainingLog("x", logged(tokens_per_s_per_gpu=70.0), gpus=8))
    assert (claimed.tokens_per_s_per_gpu, claimed.tokens_per_s, claimed.tokens_from) == (70.0, 560.0, "log")


@pytest.mark.parametrize(("printed", "agree"), [(62.5, True), (60.0, True), (125.0, False), (31.0, False)])
def test_a_rate_that_is_not_what_tokens_gpus_and_step_time_come_to_is_said(printed, agree):
    said = summarise(TrainingLog("x", logged(tokens_per_s_per_gpu=printed)), gpus=8, tokens_per_step=1000)
    assert (said.disagreement is None) == agree
    assert summarise(TrainingLog("x", logged(tokens_per_s_per_gpu=printed)), gpus=8).disagreement is None


def test_an_empty_log_and_a_single_step_have_a_summary():
    assert summarise(TrainingLog("unknown", ())).steps == 0
    said = summarise(TrainingLog("x", logged((2.0,))))
    assert (said.first_step, said.last_step, said.step_time_s) == (1, 1, None)


def test_skipped_and_nan_steps_are_counted_as_the_stack_counts():
    line = megatron(Step(1, 1.0, 9.0, 1.5, 1.0, 400.0)) + "\n"
    later = line.replace("iteration        1", "iteration        2").replace(
        "skipped iterations:   0", "skipped iterations:   2"
    )
    said = summarise(read_log(line + later))
    assert (said.skipped_steps, said.nan_steps) == (2, 0)
    deepspeed = "".join(f"[Rank 0] step={n}, skipped={k}, lr=[1], mom=[1]\n" for n, k in ((10, 3), (20, 4)))
    assert summarise(read_log(deepspeed)).skipped_steps == 4


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30))
def test_a_log_that_prints_what_we_timed_agrees(times):
    text = "".join(megatron(Step(i, t, 9.0, 1.5, 1.0, 400.0)) + "\n" for i, t in enumerate(times, 1))
    assert cross_check(report(tuple(times)), read_log(text)) == ()


@given(times=st.lists(st.floats(0.1, 100), min_size=10, max_size=20), interval=st.sampled_from([2, 5, 10]))
def test_so_does_one_that_prints_the_mean_of_every_few_steps(times, interval):
    means = [sum(times[i : i + interval]) / interval for i in range(0, len(times) - interval + 1, interval)]
    steps = tuple(LoggedStep((k + 1) * interval, step_time_s=mean) for k, mean in enumerate(means))
    assert cross_check(report(tuple(times)), TrainingLog("x", steps)) == ()


@given(factor=st.floats(0.01, 0.95) | st.floats(1.05, 100))
def test_times_that_are_not_ours_are_named(factor):
    found = cross_check(report(), TrainingLog("x", logged(tuple(t * factor for t in TIMES))))
    assert len(found) == 1
    assert "our own timing says 2 s" in found[0]


def test_a_single_forged_step_further_steps_restarts_and_a_forged_rate_are_named():
    forged = (*TIMES[:5], 0.01, *TIMES[6:])
    assert "for step 6" in cross_check(report(), TrainingLog("x", logged(forged)))[0]
    assert "step 11, but 8" in cross_check(report(), TrainingLog("x", logged((*TIMES, 2.0, 2.0, 2.0))))[0]
    assert "goes back" in cross_check(report(), TrainingLog("x", logged(), restarts=1))[0]
    assert "625 tokens/s/GPU" in cross_check(report(), TrainingLog("x", logged(tokens_per_s_per_gpu=625.0)))[0]


@given(st.dictionaries(st.integers(1, 99), st.none() | st.floats(), max_size=20))
def test_no_log_changes_the_report_or_breaks_the_check(claims):
    steps = [LoggedStep(step, claims[step]) for step in sorted(claims)]
    ours = report()
    before = ours.model_dump_json()
    assert all(isinstance(sentence, str) for sentence in cross_check(ours, TrainingLog("x", tuple(steps))))
    assert ours.model_dump_json() == before


@pytest.mark.parametrize("status", ["oom", "invalid"])
def test_a_run_without_a_timed_step_is_checked_too(status):
    empty = RunReport(label="x", status=status, provenance="simulated", steps=8)
    assert cross_check(empty, TrainingLog("unknown", ())) == ()
    assert "0 steps were timed" in cross_check(empty, TrainingLog("x", logged((2.0,))))[0]
