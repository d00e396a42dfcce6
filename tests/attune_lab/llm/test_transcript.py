"""Exchanges are kept, found again, survive a kill, and are not believed when edited."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.llm import Reply, Request, UnusableReply
from attune_lab.llm.recorded import RecordedLLM
from attune_lab.llm.transcript import Transcript

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def request(**facts):
    return Request("counter", "You count.", "Next?", facts, SCHEMA)


class Counter:
    """Answers with the number of times it was called; an odd question gets no usable answer."""

    name = "counter"

    def __init__(self):
        self.calls = 0

    def complete(self, request):
        self.calls += 1
        if request.facts.get("odd"):
            raise UnusableReply("no number came", Reply({}, 5, 1, 0.1))
        return Reply({"n": self.calls}, 7, 2, 0.25)


def refuse():
    raise AssertionError("the model was called")


def test_the_same_question_is_asked_once():
    model = Counter()
    llm = RecordedLLM("counter", lambda: model, Transcript())
    assert llm.complete(request(a=1)) == llm.complete(request(a=1)) == Reply({"n": 1}, 7, 2, 0.25)
    assert llm.complete(request(a=2)).body == {"n": 2}
    assert model.calls == 2


def test_replays_from_the_file_without_the_model(tmp_path):
    path = tmp_path / "new" / "talk.jsonl"
    llm = RecordedLLM("counter", Counter, Transcript(path))
    said = [llm.complete(request(a=n)) for n in range(3)]
    with pytest.raises(UnusableReply) as first:
        llm.complete(request(odd=True))
    again = RecordedLLM("counter", refuse, Transcript(path))
    assert [again.complete(request(a=n)) for n in range(3)] == said
    with pytest.raises(UnusableReply, match="no number came") as second:
        again.complete(request(odd=True))
    assert second.value.spent == first.value.spent


def test_an_unknown_price_stays_unknown(tmp_path):
    class Dear(Counter):
        def complete(self, request):
            return Reply({"n": 0}, usd=math.nan)

    path = tmp_path / "talk.jsonl"
    RecordedLLM("dear", Dear, Transcript(path)).complete(request())
    assert math.isnan(RecordedLLM("dear", refuse, Transcript(path)).complete(request()).usd)


def test_another_model_or_another_question_is_another_exchange(tmp_path):
    path = tmp_path / "talk.jsonl"
    RecordedLLM("counter", Counter, Transcript(path)).complete(request(a=1))
    with pytest.raises(AssertionError, match="was called"):
        RecordedLLM("other", refuse, Transcript(path)).complete(request(a=1))
    with pytest.raises(AssertionError, match="was called"):
        RecordedLLM("counter", refuse, Transcript(path)).complete(request(a=2))


def test_an_empty_transcript_connects_at_once():
    with pytest.raises(AssertionError, match="was called"):
        RecordedLLM("counter", refuse, Transcript())


def test_a_line_cut_by_a_kill_is_asked_again(tmp_path):
    path = tmp_path / "talk.jsonl"
    llm = RecordedLLM("counter", Counter, Transcript(path))
    llm.complete(request(a=1))
    llm.complete(request(a=2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    model = Counter()
    again = RecordedLLM("counter", lambda: model, Transcript(path))
    again.complete(request(a=1))
    assert model.calls == 0
    again.complete(request(a=2))
    assert model.calls == 1
    assert len(list(Transcript(path))) == 2
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == [
        "asked", "replied", "asked", "asked", "replied",
    ]  # fmt: skip


def test_what_a_power_cut_leaves_at_the_end_is_removed(tmp_path):
    path = tmp_path / "talk.jsonl"
    RecordedLLM("counter", Counter, Transcript(path)).complete(request(a=1))
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(4096))
    assert len(list(Transcript(path))) == 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", '{"llm": "m", "request": {"role": "r"}}', '{"llm": 3}'])
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path, line, end):
    path = tmp_path / "talk.jsonl"
    path.write_text(line + end)
    with pytest.raises(UserError, match=r"talk.jsonl, line 1: no line of a transcript"):
        Transcript(path)
    assert path.read_text() == line + end


def test_what_is_no_regular_file_is_refused_unopened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UserError, match="no regular file"):
            Transcript(path)


def test_an_edited_reply_is_not_believed(tmp_path):
    path = tmp_path / "talk.jsonl"
    RecordedLLM("counter", Counter, Transcript(path)).complete(request(a=1))
    path.write_text(path.read_text().replace('{"n": 1}', '{"n": 2}'))
    with pytest.raises(UserError, match=r"talk.jsonl, line 2: this or an earlier line was edited"):
        Transcript(path)


ANY_TEXT = st.text(st.characters(), max_size=20)  # lone surrogates too, as a log read byte by byte may have them


@given(ANY_TEXT, st.dictionaries(st.text(max_size=5), st.none() | st.integers() | ANY_TEXT))
def test_any_text_survives_the_file(tmp_path_factory, prompt, facts):
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    asked = Request("counter", prompt, prompt, facts, SCHEMA)
    RecordedLLM("counter", Counter, Transcript(path)).complete(asked)
    assert RecordedLLM("counter", refuse, Transcript(path)).complete(asked).body == {"n": 1}
