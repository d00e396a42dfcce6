"""Reading curves: round trips, every version of the log line, and files that are no curve."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.gate.curve import Curve
from attune_lab.gate.curves_io import read_curve, read_log, write_csv

LOSSES = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=30)


@given(losses=LOSSES, first=st.integers(1, 1000), stride=st.integers(1, 7), with_norms=st.booleans())
def test_csv_round_trip_keeps_every_value(tmp_path_factory, losses, first, stride, with_norms):
    steps = np.arange(first, first + stride * len(losses), stride)
    norms = {"grad_norm": np.sqrt(losses), "grad_norm.router": np.array(losses) / 3} if with_norms else {}
    path = tmp_path_factory.mktemp("csv") / "curve.csv"
    write_csv(Curve(steps, np.array(losses), np.zeros(len(losses)), norms), path)
    read = read_curve(path)
    assert read.steps.tolist() == steps.tolist()
    assert read.loss.tolist() == losses
    assert {n: v.tolist() for n, v in read.norms.items()} == {n: v.tolist() for n, v in norms.items()}


def test_steps_counted_from_0_are_counted_from_1(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("step,lm_loss\n0,3.0\n1,2.5\n")
    assert read_curve(path).steps.tolist() == [1, 2]


@given(losses=LOSSES)
def test_printed_quantum_covers_the_rounding(tmp_path_factory, losses):
    path = tmp_path_factory.mktemp("log") / "train.log"
    path.write_text("".join(f" iteration {i}/ 30 | lm loss: {x:.6E} |\n" for i, x in enumerate(losses, 1)))
    curve = read_curve(path)
    assert np.all(np.abs(curve.loss - losses) <= curve.quantum / 2 * (1 + 1e-9))


LINES = {
    "v2.0": " iteration       {i}/     100 | consumed samples:  32 | elapsed time per iteration (ms): 910.1 | "
    "learning rate: 1.500E-04 | global batch size:    32 | lm loss: {x:.6E} | loss scale: 1.0 | grad norm: 2.125 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |",
    "core_v0.13": " [2025-07-01 10:00:00] iteration {i}/ 100 | consumed samples: 32 | elapsed time per iteration (ms): "
    "910.1 | throughput per GPU (TFLOP/s/GPU): 401.2 | energy per GPU (J/iter/GPU): 512.0 | power per GPU (W/GPU): "
    "640.1 | learning rate: 1.500000E-04 | global batch size: 32 | lm loss: {x:.6E} | load_balancing_loss: "
    "1.000000E+00 | loss scale: 1.0 | grad norm: 2.125 | num zeros: None | params norm: 1.5 | number of skipped "
    "iterations: 0 | number of nan iterations: 0 |",
    "core_v0.18": "3: [2026-07-01 10:00:00.123456] iteration {i}/ 100 | consumed samples: 32 | skipped samples: 0 | "
    "elapsed time per iteration (ms): 910.1 | learning rate: 1.500000E-04 | global batch size: 32 | lm loss: {x:.6E} "
    "| load_balancing_loss: 1.02 | loss scale: 1.0 | grad norm: 2.125 | number of skipped iterations: 0 |",
}


@pytest.mark.parametrize("version", LINES)
def test_every_version_of_the_iteration_line(tmp_path, version):
    path = tmp_path / "train.log"
    path.write_text("starting\n" + "\n".join(LINES[version].format(i=i, x=12.0 - i) for i in (1, 2, 3)) + "\n")
    curve = read_curve(path)
    assert curve.steps.tolist() == [1, 2, 3]
    assert curve.loss.tolist() == [11.0, 10.0, 9.0]
    assert curve.norms["grad_norm"].tolist() == [2.125] * 3


def test_a_restarted_log_counts_what_training_went_on_from_and_skips_lines_without_a_loss(tmp_path):
    path = tmp_path / "train.log"
    prints = [(1, "9.0"), (2, "8.0"), (3, "7.0"), (4, "6.0"), (2, "8.5"), (3, "7.5")]
    path.write_text(
        "iteration 0/ 9 | loss scale: 1.0 |\n" + "".join(f"iteration {i}/ 9 | lm loss: {x} |\n" for i, x in prints)
    )
    curve = read_curve(path)
    assert curve.steps.tolist() == [1, 2, 3]  # step 4 was thrown away by the restart
    assert curve.loss.tolist() == [9.0, 8.5, 7.5]


def test_a_restarted_csv_is_read_like_a_log_and_a_doubled_step_is_not(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("step,lm_loss\n1,9\n2,8\n3,7\n2,8.5\n3,7.5\n4,6.5\n")
    assert read_curve(path).loss.tolist() == [9, 8.5, 7.5, 6.5]
    path.write_text("step,lm_loss\n1,9\n2,8\n2,8.5\n3,7.5\n")
    with pytest.raises(UserError, match="twice"):
        read_curve(path)


@given(losses=LOSSES)
def test_a_file_written_backwards_is_the_same_curve(tmp_path_factory, losses):
    folder = tmp_path_factory.mktemp("back")
    lines = [f" iteration {i}/ 30 | lm loss: {x:.6E} | grad norm: 1.0 |" for i, x in enumerate(losses, 1)]
    (folder / "a.log").write_text("\n".join(lines))
    (folder / "b.log").write_text("\n".join(reversed(lines)))
    forward, backward = read_curve(folder / "a.log"), read_curve(folder / "b.log")
    assert forward.steps.tolist() == backward.steps.tolist()
    assert forward.loss.tolist() == backward.loss.tolist()


@given(cut=st.integers(1, 400))
def test_a_log_cut_anywhere_never_shows_a_wrong_loss(tmp_path_factory, cut):
    losses = [12.345678, 11.234567, 10.123456]
    whole = "".join(
        f" [2026-01-01 00:00:0{i}] iteration {i}/ 9 | elapsed time per iteration (ms): 91{i}.5 | lm loss: {x:.6E} | "
        "grad norm: 2.125 |\n"
        for i, x in enumerate(losses, 1)
    )
    path = tmp_path_factory.mktemp("cut") / "train.log"
    path.write_text(whole[: max(cut, whole.index("\n"))])
    curve = read_curve(path)
    assert curve.loss.tolist() == [float(f"{x:.6E}") for x in losses[: curve.loss.size]]


@given(cut=st.integers(1, 40))
def test_a_csv_cut_anywhere_never_shows_a_wrong_loss(tmp_path_factory, cut):
    whole = "step,lm_loss\n" + "".join(f"{i},{x:.6f}\n" for i, x in enumerate([9.123456, 8.5, 8.25, 7.75], 1))
    path = tmp_path_factory.mktemp("cut") / "c.csv"
    path.write_text(whole[: 24 + cut])
    assert set(read_curve(path).loss.tolist()) <= {9.123456, 8.5, 8.25, 7.75}


def test_the_clock_of_a_run_is_kept(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LINES["core_v0.13"].format(i=1, x=9.0) + "\n")
    assert read_curve(path).clock == ("2025-07-01 10:00:00 910.1",)
    table = tmp_path / "c.csv"
    table.write_text("step,lm_loss,iteration_time_s\n1,9,0.5\n2,8,0.25\n")
    assert read_curve(table).clock == ("0.5", "0.25")


def test_rows_are_sorted_and_a_diverged_loss_is_kept(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(b"\xef\xbb\xbfstep, lm_loss ,note\r\n2,nan,x\r\n1,9.5,y\r\n3,,z\r\n")
    curve = read_curve(path)
    assert curve.steps.tolist() == [1, 2]
    assert np.isnan(curve.loss[1])


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "empty"),
        (b"\x7fELF\0\0", "not a text"),
        (b"hello\nworld\n", "neither"),
        (b"step,lm_loss\n", "no step"),
        (b"step,lm_loss\n1,2\n1,3\n", "twice"),
        (b"step,lm_loss\n1,__import__('os')\n", "not a number"),
        (b"step,lm_loss\n1.5,2\n", "whole"),
        (b"step,lm_loss\n1,2,3\n", "line 2"),
        (b"step,lm_loss,lm_loss\n1,2,3\n", "column twice"),
    ],
)
def test_what_is_no_curve_is_refused_in_one_sentence(tmp_path, content, hint):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=hint) as refusal:
        read_curve(path)
    assert "\n" not in str(refusal.value)


def test_run_folder_prefers_the_csv_and_refuses_two_logs(tmp_path: Path):
    (tmp_path / "a.log").write_text("iteration 1/ 9 | lm loss: 5.0 |\n")
    assert read_curve(tmp_path).loss.tolist() == [5.0]
    (tmp_path / "b.log").write_text("iteration 1/ 9 | lm loss: 6.0 |\n")
    with pytest.raises(UserError, match="several"):
        read_curve(tmp_path)
    (tmp_path / "curve.csv").write_text("step,lm_loss\n1,7\n")
    assert read_curve(tmp_path).loss.tolist() == [7.0]
    with pytest.raises(UserError, match="no such"):
        read_curve(tmp_path / "missing")


def test_digits_of_other_scripts_are_no_numbers(tmp_path):
    for row in ("5,\u0668.\u0662", "\u0665,8.2"):
        (tmp_path / "run.csv").write_text(f"step,lm_loss\n1,9.0\n{row}\n", encoding="utf-8")
        with pytest.raises(UserError, match="is not a number"):
            read_curve(tmp_path / "run.csv")


def test_the_last_line_of_a_cut_log_is_left_out_whole(tmp_path):
    """Its loss may be complete and its gradient norm not."""
    lines = [f" iteration {i}/ 40 | lm loss: {9 - i / 10:.6E} | grad norm: 3.000 |" for i in range(1, 5)]
    (tmp_path / "run.log").write_text("\n".join(lines)[:-4])
    curve = read_curve(tmp_path / "run.log")
    assert curve.steps.tolist() == [1, 2, 3]
    assert not np.isnan(curve.norms["grad_norm"]).any()


def test_the_columns_of_a_log_count_their_steps_as_its_curve_does(tmp_path):
    (tmp_path / "run.log").write_text("".join(f" iteration {i}/ 9 | lm loss: 9.{i} |\n" for i in range(3)))
    assert list(read_log(tmp_path / "run.log")) == read_curve(tmp_path / "run.log").steps.tolist() == [1, 2, 3]
