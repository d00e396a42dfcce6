"""The tree of documents: pieces of them, and logs that are not what they should be."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.agent.claude.workspace import LogFile, Text, log_of, printable


@given(st.text(max_size=60), st.integers(0, 80), st.integers(1, 80))
def test_a_piece_is_part_of_the_text(content, offset, limit):
    piece = Text(content).read(offset, limit)
    assert piece in content
    assert len(piece.encode()) <= limit


@given(st.text(max_size=60))
def test_pieces_make_up_a_text_of_single_bytes(content):
    plain = Text("".join(char for char in content if char.isascii()))
    assert "".join(plain.read(place, 7) for place in range(0, plain.size, 7)) == plain.content


@given(st.binary(max_size=80))
def test_whatever_stands_in_a_log_is_shown_as_printable_text(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    shown = LogFile(path).read(0, 100)
    assert all(char.isprintable() or char in "\n\t" for char in shown)


@pytest.fixture
def folder(tmp_path):
    logs = tmp_path / "campaign" / "logs"
    logs.mkdir(parents=True)
    (logs / "a.log").write_text("a line\n")
    (tmp_path / "secret.log").write_text("secret\n")
    return tmp_path / "campaign"


def test_a_log_is_found_by_its_name(folder):
    for named in ("a.log", str(folder / "logs" / "a.log"), "/elsewhere/logs/a.log"):
        assert log_of(named, folder).read(0, 99) == "a line\n"


@pytest.mark.parametrize(
    "named", [None, "", "b.log", "..", ".", "/", "../secret.log", "/etc/passwd", "a.log\0", "x" * 5000]
)
def test_what_is_no_log_there_is_none(folder, named):
    assert log_of(named, folder) is None


def test_no_link_pipe_or_folder_is_taken_for_a_log(folder):
    logs = folder / "logs"
    (logs / "link.log").symlink_to(folder.parent / "secret.log")
    (logs / "folder.log").mkdir()
    os.mkfifo(logs / "pipe.log")
    for name in ("link.log", "folder.log", "pipe.log"):
        assert log_of(name, folder) is None


def test_a_folder_of_logs_elsewhere_is_not_followed(folder):
    (folder / "logs" / "a.log").unlink()
    (folder / "logs").rmdir()
    (folder / "logs").symlink_to(folder.parent)
    assert log_of("secret.log", folder) is None


def test_a_log_that_was_replaced_since_is_not_followed(folder):
    log = log_of("a.log", folder)
    log.path.unlink()
    assert (log.read(0, 9), log.size) == ("", 0)
    log.path.symlink_to(folder.parent / "secret.log")
    assert log.read(0, 9) == ""
    log.path.unlink()
    os.mkfifo(log.path)
    assert log.read(0, 9) == ""


def test_a_large_log_is_read_in_its_middle_and_past_its_end(folder):
    path = folder / "logs" / "large.log"
    with path.open("wb") as file:
        file.seek(10**9)
        file.write(b"end\n")
    log = log_of("large.log", folder)
    assert log.size == 10**9 + 4
    assert log.read(10**9, 99) == "end\n"
    assert log.read(10**9 + 99, 99) == ""


def test_characters_a_terminal_would_obey_are_replaced():
    assert printable("a\x1b[2Jb\x07\u202ec\tend\n") == "a�[2Jb��c\tend\n"
