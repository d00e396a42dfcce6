"""Files of any size and content: bounded memory, one sentence for what is no log, never a crash."""

import gzip
import json
import os
import random
import tracemalloc
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import RunReport, UserError
from attune_lab.logs import LogReading, cross_check, lines, read_log, summarise, track
from attune_lab.logs.lines import MAX_LINE, Splitter
from tests.attune_lab.logs.printed import Step, megatron, torchtitan
from tests.attune_lab.logs.test_failures import CASES
from tests.attune_lab.logs.test_readers import LOGS


def steps(count, first=1):
    return "".join(megatron(Step(i, 1.0, 9.0, 1.5, 1.0, 400.0)) + "\n" for i in range(first, first + count))


@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=6))
def test_no_bytes_break_the_reader_and_blocks_change_nothing(data, cuts):
    whole, parts = LogReading(), LogReading()
    whole.feed(data)
    edges = sorted({0, *cuts, len(data)})
    for start, end in pairwise(edges):
        parts.feed(data[start:end])
    assert parts.result() == whole.result()


PIECES = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"\xff", b"3: ", b"[rank1]: ", b"ab", b"  \xc3\xa9"]
)


@given(pieces=st.lists(PIECES, max_size=40), sizes=st.lists(st.integers(1, 9), min_size=60, max_size=60))
def test_lines_do_not_depend_on_where_blocks_end(pieces, sizes):
    data = b"".join(pieces)
    once = Splitter()
    expected = [*once.split(data)[1], *once.last()[1]]
    often, found = Splitter(), []
    for size in sizes:
        found += often.split(data[:size])[1]
        data = data[size:]
    found += [*often.split(data)[1], *often.last()[1]]
    assert found == expected


def test_line_numbers_are_those_of_an_editor():
    splitter = Splitter()
    _, found = splitter.split(b"one\r\n\ntwo\rthree\n1: four\nfive")
    assert [(line.number, line.text) for line in [*found, *splitter.last()[1]]] == [
        (1, "one"), (3, "two"), (3, "three"), (4, "four"), (5, "five"),
    ]  # fmt: skip


def test_a_line_without_end_costs_bounded_memory_and_the_next_is_read():
    reading = LogReading()
    tracemalloc.start()
    for _ in range(500):
        reading.feed(b"x" * 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * MAX_LINE + 2_000_000
    reading.feed(b"\n" + steps(2).encode())
    log = reading.result()
    assert len(log.steps) == 2
    assert any("cut" in remark for remark in log.remarks)


def test_a_bar_that_never_ends_its_line_is_read_state_by_state():
    bar = "".join(
        f"\rEpoch 0: 1%|x| {n}/99 [00:30<50:00, 3.0s/it, reduced_train_loss=9.5, global_step={n - 1}.0]"
        for n in range(1, 2000)
    )
    assert len(read_log(f"start\n{bar}\n").steps) == 1999


def test_head_and_tail_of_a_long_log_are_kept(monkeypatch):
    monkeypatch.setattr(track, "KEPT", 10)
    log = read_log(steps(50))
    assert [step.step for step in log.steps] == [*range(1, 11), *range(41, 51)]
    assert any("up to 10 and from 41" in remark for remark in log.remarks)
    back = read_log(steps(50) + steps(3, first=5))
    assert [step.step for step in back.steps] == [1, 2, 3, 4, 5, 6, 7]


def test_a_packed_log_reads_as_its_text_and_a_cut_one_up_to_the_cut(tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(steps(3000).encode()))
    assert len(read_log(path).steps) == 3000
    path.write_bytes(path.read_bytes()[:-2000])
    log = read_log(path)
    assert 0 < len(log.steps) < 3000
    assert any("cut off" in remark for remark in log.remarks)


def test_a_packed_bomb_is_read_up_to_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_EXPANDED", 2 * 10**6)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(steps(1).encode() + b"a" * 50_000_000))
    log = read_log(path)
    assert len(log.steps) == 1
    assert any("not further" in remark for remark in log.remarks)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF" + random.Random(0).randbytes(5000),
        "übergroß".encode("utf-16") * 100,
        random.Random(1).randbytes(100_000),
    ],
)
def test_binary_files_are_refused_in_one_sentence(tmp_path, data):
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with pytest.raises(UserError, match="binary") as refusal:
        read_log(path)
    assert "\n" not in str(refusal.value)


def test_nuls_and_stray_bytes_in_a_log_are_put_up_with(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(
        b"\0" * 5000 + steps(2).encode() + b"\xff\xfe broken\n" + steps(1, first=3).replace("E", "\0E").encode()
    )
    assert [step.loss for step in read_log(path).steps] == [9.0, 9.0, 9.0]


def test_pipes_devices_folders_and_nothing_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, word in (
        (tmp_path / "pipe", "pipe"),
        ("/dev/zero", "device"),
        (tmp_path, "folder"),
        (tmp_path / "no", "exist"),
    ):
        with pytest.raises(UserError, match=word):
            read_log(path)
    (tmp_path / "no.gz").write_text("no archive\n")
    with pytest.raises(UserError, match="gzip"):
        read_log(tmp_path / "no.gz")
    with pytest.raises(UserError, match="cannot be read"):
        read_log("nul\0name")


HOSTILE = [
    "iteration " * 1600,
    "iteration 1/ 2 |" * 1000,
    "[1111-11-11 " * 1300,
    "Building 1-D device mesh with " * 500,
    "global batch size 1 " * 800 + "Training starts at",
    "step: 1 loss: 2 " * 1000,
    "step: 1 loss: 2 " + "x" * 9000 + " iter time (s)",
    "Tried to allocate CUDA out of memory. Tried to allocate " * 280,
    "{'" * 8000,
    "{'a" + "a" * 15_000,
    " " * 16_000 + "global_step= reduced_train_loss=",
    "1/1 [" * 3000 + "reduced_train_loss= global_step=",
    "NVRM: Xid (" * 1400,
    "| a: 1 " * 2000 + "iteration 1/ 2 |" + "| b: 2 " * 300,
    "\x1b]" * 8000,
    "100%|" + "| " * 7000,
    'File "' * 2700,
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_no_line_takes_the_regular_expressions_long(line):
    """Counted, not timed: with backtracking that grows with the square, the whole would take hours."""
    reading = LogReading()
    for _ in range(200):
        reading.feed(f"{line[:16_000]}\n".encode())
    reading.result()


@given(digits=st.integers(16, 6000))
def test_numbers_that_no_log_prints_are_left_out(digits):
    absurd = "9" * digits
    text = steps(1) + steps(1, first=2).replace("iteration        2/", f"iteration {absurd}/")
    assert [step.step for step in read_log(text).steps] == [1]
    assert read_log(steps(1).replace("9.000000E+00", absurd)).steps[0].loss in (
        None,
        float(absurd[:40]) if digits <= 40 else None,
    )


def test_colours_within_a_line_change_nothing():
    step, now = Step(1, 1.0, 9.0, 1.5, 1234.0, 400.0), datetime(2026, 1, 1)
    plain, coloured = (torchtitan(step, now=now, colours=colours) + "\n" for colours in (False, True))
    assert read_log(plain) == read_log(coloured)


OURS = RunReport(
    label="x", status="ok", provenance="simulated", steps=5, step_times_s=(1.0,) * 5, tokens_per_s_per_gpu=1.0
)
ODD = st.sampled_from(["9" * 20, "nan", "-1", "1e999", "|", ":", "\n", "\r", "\x1b[31m", "{'", "iteration 3/ 9 |"])


@given(case=st.sampled_from(sorted(CASES)), stack=st.sampled_from(sorted(LOGS)), data=st.data())
def test_a_damaged_log_is_read_and_summed_up_without_a_crash(case, stack, data):
    text = LOGS[stack][1]([Step(i, 1.0, 9.0, 1.5, 1000.0, 400.0) for i in (1, 2, 3)]) + CASES[case][0]
    for odd, at in data.draw(st.lists(st.tuples(ODD, st.integers(0, len(text))), min_size=1, max_size=8)):
        text = text[:at] + odd + text[at + data.draw(st.integers(0, 9)) :]
    log = read_log(text + "\n")
    assert all(before.step < after.step for before, after in pairwise(log.steps))
    json.dumps(asdict(summarise(log)))
    assert all(len(sentence) < 300 for sentence in (*cross_check(OURS, log), *log.remarks))
