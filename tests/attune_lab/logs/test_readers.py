"""Every stack's log is read back to the digits that it prints."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.logs import read_log, summarise
from tests.attune_lab.logs import printed
from tests.attune_lab.logs.printed import Digits, Step

EXACT = (0.0, 1e-9)
STEPS = st.lists(
    st.builds(
        Step,
        number=st.just(0),
        seconds=st.floats(0.05, 500),
        loss=st.floats(0.001, 20),
        norm=st.floats(0.01, 900),
        rate=st.floats(10, 90_000),
        tflops=st.floats(1, 2000),
    ),
    min_size=1,
    max_size=8,
).map(lambda steps: [Step(i, s.seconds, s.loss, s.norm, s.rate, s.tflops) for i, s in enumerate(steps, 1)])

MEGATRON = Digits(seconds=(1e-4, 0), loss=(0, 1e-6), norm=(1e-3, 0), tflops=(0.1, 0))


def lines(write):
    return lambda steps: "".join(write(step) + "\n" for step in steps)


def titan(steps):
    return "".join(
        printed.torchtitan(step, now=now) + "\n" for step, now in zip(steps, printed.moments(steps), strict=True)
    )


def bars(steps):
    return "start\n" + "".join(map(printed.nemo_bar, steps)) + "\n"


def huggingface(strings):
    return lambda steps: "".join(printed.hf_trainer(s, elapsed_s=9, strings=strings) + "\n" for s in steps)


BATCH = "[2026-01-01 00:00:00,123] [INFO] [config.py:1003:print]   train_batch_size ............. 64\n"
LOGS = {
    "v2.0": (
        "megatron-lm",
        lines(lambda s: printed.megatron(s, version="v2.0")),
        Digits(seconds=(1e-4, 0), loss=(0, 1e-6), norm=(1e-3, 0)),
    ),
    "core_v0.6": ("megatron-lm", lines(lambda s: printed.megatron(s, version="core_v0.6")), MEGATRON),
    "core_v0.19": ("megatron-lm", lines(printed.megatron), MEGATRON),
    "bridge": ("megatron-bridge", lines(printed.bridge), MEGATRON),
    "torchtitan": (
        "torchtitan",
        titan,
        Digits(loss=(1e-5, 0), norm=(1e-4, 0), rate=(1, 0), tflops=(0.01, 0)),
    ),
    "engine": ("deepspeed", lambda steps: BATCH + lines(printed.deepspeed_engine)(steps), Digits(seconds=EXACT)),
    "pipeline": ("deepspeed", lines(printed.deepspeed_pipeline), Digits(seconds=(1e-3, 0), loss=(1e-4, 0))),
    "nemo": ("nemo", lines(printed.nemo), Digits(seconds=(0, 1e-3), loss=(0, 1e-3), tflops=(0, 1e-3))),
    "nemo bar": ("nemo", bars, Digits(seconds=(0, 1e-2), loss=(0, 1e-2))),
    "trainer": ("hf-trainer", huggingface(False), Digits(loss=(1e-4, 0), norm=EXACT)),
    "trainer 5": ("hf-trainer", huggingface(True), Digits(loss=(1e-4, 1e-3), norm=(0, 1e-3))),
    "nanotron": (
        "nanotron",
        lines(printed.nanotron),
        Digits(seconds=(0, 1e-2), loss=(1e-6, 1e-2), norm=(1e-6, 1e-2), rate=(0, 1e-2), tflops=(0, 1e-2)),
    ),
}
FIGURES = {
    "seconds": "step_time_s",
    "loss": "loss",
    "norm": "grad_norm",
    "rate": "tokens_per_s_per_gpu",
    "tflops": "model_tflops_per_gpu",
}


@pytest.mark.parametrize("name", LOGS)
@given(steps=STEPS)
@settings(max_examples=25)
def test_every_figure_that_a_stack_prints_is_read_back(name, steps):
    stack, write, digits = LOGS[name]
    log = read_log(write(steps))
    assert log.stack == stack
    assert [step.step for step in log.steps] == [step.number for step in steps]
    assert log.failure is None
    for figure, column in FIGURES.items():
        precision = getattr(digits, figure)
        for step, read in zip(steps, log.steps, strict=True):
            value = getattr(read, column)
            if precision is None:
                assert value is None or figure == "seconds"
            else:
                assert value == pytest.approx(getattr(step, figure), abs=precision[0], rel=precision[1])


@pytest.mark.parametrize("name", LOGS)
@given(steps=STEPS, cut=st.floats(0, 1))
@settings(max_examples=25)
def test_a_log_cut_anywhere_shows_no_figure_that_the_whole_log_does_not(name, steps, cut):
    text = LOGS[name][1](steps)
    whole = {step.step: step for step in read_log(text).steps}
    end = text.index("\n") + 1 + int(cut * (len(text) - text.index("\n") - 1))
    for step in read_log(text[:end]).steps:
        for column in FIGURES.values():
            assert getattr(step, column) in (None, getattr(whole[step.step], column))


@pytest.mark.parametrize("name", ["core_v0.19", "torchtitan", "nemo", "nanotron", "pipeline"])
@pytest.mark.parametrize("prefix", ["{rank}: ", " {rank}: ", "[rank{rank}]: ", "{rank}: [rank{rank}]: "])
def test_prefixes_of_launchers_change_nothing_and_copies_of_other_ranks_are_left_out(name, prefix):
    steps = [Step(i, 1.0 + i, 9.0 - i, 1.5, 1000.0 + i, 400.0) for i in range(1, 6)]
    plain = LOGS[name][1](steps)
    alone = "".join(prefix.format(rank=7) + line + "\n" for line in plain.splitlines())
    assert read_log(alone).steps == read_log(plain).steps
    both = "".join(prefix.format(rank=rank) + line + "\n" for line in plain.splitlines() for rank in (7, 3))
    log = read_log(both)
    assert [step.loss for step in log.steps] == [step.loss for step in read_log(plain).steps]
    assert log.restarts == 0


def test_step_times_of_torchtitan_are_differences_of_its_time_stamps():
    steps = [Step(i, 1.0 + i, 9.0 - i, 1.5, 1000.0, 400.0) for i in (1, 11, 21)]
    log = read_log(titan(steps))
    assert [step.step_time_s for step in log.steps] == [None, pytest.approx(1.2), pytest.approx(2.2)]


def test_step_times_of_the_trainer_need_a_bar_that_has_moved_far_enough():
    steps = [Step(i, 1.0, 9.0, 1.5, 1000.0, 400.0) for i in (10, 20, 30)]
    text = "".join(printed.hf_trainer(s, elapsed_s=t) + "\n" for s, t in zip(steps, (60, 65, 3665), strict=True))
    assert [step.step_time_s for step in read_log(text).steps] == [None, None, 360.0]


def test_a_dictionary_without_a_bar_is_counted_and_its_nan_is_read():
    log = read_log("{'loss': 2.5, 'epoch': 0.1}\n{'loss': nan, 'grad_norm': nan, 'epoch': 0.2}\n")
    assert [step.step for step in log.steps] == [1, 2]
    assert math.isnan(log.steps[1].loss)
    assert any("no step numbers" in remark for remark in log.remarks)


@pytest.mark.parametrize("code", ["{'loss': __import__('os').getpid()}", "{'loss': 2 ** 99999}", "{'loss': [[[[1]]]]}"])
def test_a_dictionary_that_is_code_is_no_entry(code):
    assert read_log(f"{{'loss': 2.5}}\n{code}\n").steps == read_log("{'loss': 2.5}\n\n").steps


def test_a_restart_drops_what_it_undid():
    steps = [Step(i, 1.0, 10.0 - i, 1.5, 1000.0, 400.0) for i in (1, 2, 3, 4)]
    again = [Step(i, 1.0, 20.0 - i, 1.5, 1000.0, 400.0) for i in (3, 4, 5)]
    log = read_log(lines(printed.megatron)(steps + again))
    assert [(step.step, step.loss) for step in log.steps] == [(1, 9.0), (2, 8.0), (3, 17.0), (4, 16.0), (5, 15.0)]
    assert log.restarts == 1


def test_steps_counted_from_0_are_counted_from_1():
    steps = [Step(i, 1.0, 9.0, 1.5, 1000.0, 400.0) for i in (0, 1, 2)]
    assert [step.step for step in read_log(lines(printed.nanotron)(steps)).steps] == [1, 2, 3]


def test_a_line_that_a_kill_ran_into_the_next_gives_the_second():
    first = printed.megatron(Step(7, 1.0, 9.0, 1.5, 1000.0, 400.0))
    second = printed.megatron(Step(5, 2.0, 8.0, 1.5, 1000.0, 400.0))
    log = read_log(f"{first[:90]}{second}\n")
    assert [(step.step, step.loss, step.step_time_s) for step in log.steps] == [(5, 8.0, 2.0)]


def test_megatron_tells_memory_devices_tokens_and_stragglers():
    log = read_log(
        "  world_size ...................................... 64\n"
        "  seq_length ...................................... 4096\n"
        "[Rank 3] (after 2 iterations) memory (MB) | allocated: 53199.095 | max allocated: 84019.36 | reserved: 84732.0"
        " | max reserved: 84734.0\n"
        " 0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | "
        "MnPwr/Rnk: 601796W/8 | MnEtpt/Rnk: 296.02TF/0\n"
        + lines(printed.megatron)([Step(i, 2.0, 9.0, 1.5, 1.0, 400.0) for i in range(1, 7)])
    )
    assert log.memory_bytes == {3: 84734.0 * 2**20}
    assert (log.gpus, log.tokens_per_step) == (64, 64 * 4096)
    assert log.round_trip_s == {8: 3.45308, 0: 3.4682}
    figures = summarise(log)
    assert figures.tokens_per_s_per_gpu == pytest.approx(64 * 4096 / 2.0 / 64)
    assert figures.tokens_from == "step time"
    assert figures.straggler == "rank 0 takes 3.468 s a step, 0.4% more than rank 8"


def test_a_log_of_two_stacks_is_that_of_the_one_with_most_figures():
    steps = [Step(i, 1.0, 9.0, 1.5, 1000.0, 400.0) for i in range(1, 5)]
    text = lines(lambda s: printed.deepspeed_engine(s) + "\n" + printed.megatron(s))(steps)
    log = read_log(text)  # as Megatron-DeepSpeed prints it
    assert log.stack == "megatron-lm"
    assert any("deepspeed" in remark for remark in log.remarks)
    assert log.steps == read_log(lines(printed.megatron)(steps)).steps
    assert read_log(text + printed.deepspeed_engine(Step(5, 1.0, 9.0, 1.5, 1000.0, 400.0)) + "\n").steps == log.steps
    trainer = BATCH + lines(printed.deepspeed_engine)(steps) + huggingface(False)(steps[:1])
    assert read_log(trainer).stack == "deepspeed"


def test_bridge_counts_nothing_for_hybrid_models_in_one_release():
    log = read_log(printed.bridge(Step(1, 1.0, 9.0, 1.5, 1000.0, 0.0)) + "\n")
    assert log.steps[0].model_tflops_per_gpu is None
    assert any("25.11" in remark for remark in log.remarks)


def test_a_validation_line_of_torchtitan_is_no_step():
    text = titan([Step(1, 1.0, 9.0, 1.5, 1000.0, 400.0)])
    validation = text.replace("step:  1", "validate step:  1").replace("9.0", "1.0")
    assert read_log(text + validation).steps == read_log(text).steps
