"""A growing log is followed to its end; every pause of the reader writes the next piece, so that no clock is needed."""

import gzip

import pytest

from attune_lab.contracts import UserError
from attune_lab.logs import LogReading, read_log
from attune_lab.logs.following import QUIET, follow
from tests.attune_lab.logs.printed import Step, megatron

LINES = [megatron(Step(i, 1.0, 9.0 - i, 1.5, 1.0, 400.0)) + "\n" for i in range(1, 6)]
END = "[exiting program at iteration 5] datetime: 2026-01-01 00:00:00 \n"


class Writer:
    """Writes the next piece whenever the reader waits."""

    def __init__(self, path, pieces):
        self.path, self.pieces, self.pauses, self.idle = path, list(pieces), 0, 0
        path.write_text("starting\n")

    def pause(self):
        self.pauses += 1
        if self.pieces:
            piece = self.pieces.pop(0)
            if piece is None:
                self.path.write_text("")
            else:
                with self.path.open("a") as file:
                    file.write(piece)
        else:
            self.idle += 1
            if self.idle > 5 * QUIET:
                raise InterruptedError


def followed(path, pieces):
    writer, reading, seen = Writer(path, pieces), LogReading(), []
    follow(path, reading, seen.append, writer.pause)
    return writer, reading.result(), seen


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_growing_log_reads_as_the_whole_one_however_it_grows(tmp_path, size):
    text = "".join(LINES) + END
    path = tmp_path / "x.log"
    writer, log, seen = followed(path, [text[i : i + size] for i in range(0, len(text), size)])
    assert log == read_log(path)
    assert log.finished
    assert seen[-1].step == 5
    assert writer.pauses == len(range(0, len(text), size)) + QUIET


def test_a_failure_ends_it_once_nothing_more_is_written(tmp_path):
    _, log, seen = followed(tmp_path / "x.log", [*LINES[:2], "Killed\n", "a late line\n", ""])
    assert log.failure.kind == "oom_host"
    assert [step.step for step in seen] == [1, 2]


def test_a_log_that_says_no_end_is_followed_until_somebody_stops(tmp_path):
    writer, reading = Writer(tmp_path / "x.log", LINES), LogReading()
    with pytest.raises(InterruptedError):
        follow(tmp_path / "x.log", reading, lambda step: None, writer.pause)
    assert len(reading.result().steps) == 5


def test_a_file_emptied_by_a_rotation_is_read_on(tmp_path):
    _, log, _ = followed(tmp_path / "x.log", [*LINES[:3], None, *LINES[3:], END])
    assert [step.step for step in log.steps] == [1, 2, 3, 4, 5]


def test_a_packed_or_binary_file_is_not_followed(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "x").write_bytes(bytes(range(256)) * 50)
    for name, word in (("x.gz", "compressed"), ("x", "binary")):
        with pytest.raises(UserError, match=word):
            follow(tmp_path / name, LogReading(), lambda step: None, lambda: None)
