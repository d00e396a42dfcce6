"""Notes of a language model: bounded, one line a field, never executed, kept as they were written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from attune_lab.contracts import UserError
from attune_lab.lessons.notes import MAX_NOTES, NOTES_FILE, Note, read_notes, write_notes

texts = st.text(min_size=1, max_size=100).filter(lambda text: any(letter.isalnum() for letter in text))


@given(title=texts, text=texts, author=texts)
def test_whatever_is_written_is_printable_on_one_line(title: str, text: str, author: str) -> None:
    note = Note(title=title, text=text, author=author)
    assert "\x1b" not in note.title + note.text + note.author
    assert "\n" not in note.title + note.text + note.author
    assert Note.model_validate_json(note.model_dump_json()) == note


def test_notes_come_back_as_written(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == ()
    notes = [
        Note(title=f"Lower TP {n}", text="seen twice", symptoms=("exposed_tp_comm",), runs=("search-3",), author="m")
        for n in range(3)
    ]
    write_notes(tmp_path, notes)
    write_notes(tmp_path, notes)
    assert read_notes(tmp_path) == tuple(notes)


@pytest.mark.parametrize(
    "broken",
    [
        {"title": "", "text": "x", "author": "m"},
        {"title": "x" * 121, "text": "x", "author": "m"},
        {"title": "x", "text": "x" * 1201, "author": "m"},
        {"title": "x", "text": "x", "author": "m", "symptoms": ["made_up"]},
        {"title": "x", "text": "x", "author": "m", "moves": [{"tp": 1}]},
    ],
)
def test_what_is_no_note_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Note.model_validate(broken)


@pytest.mark.parametrize("text", ["[", "{}", "[1]", "[" + ",".join(["{}"] * (MAX_NOTES + 1)) + "]"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTES_FILE).write_text(text)
    with pytest.raises(UserError, match=re.escape(NOTES_FILE)):
        read_notes(tmp_path)
