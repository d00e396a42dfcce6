"""A conversation is kept: it resumes and replays, and whatever was edited or drifted is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm.allowance import Allowance, Spent
from attune_lab.llm.chat import AllowanceSpent, Answer, Chat, Tool
from attune_lab.llm.recorded import RecordedChat
from attune_lab.llm.tokens import most_input
from attune_lab.llm.transcript import Transcript
from tests.attune_lab.llm.talking import FIRST, after


class Partner:
    """Calls `read` with the number of its answer; what its ``plan`` holds at a place is raised instead."""

    name = "partner"

    def __init__(self, allowance=None, plan=(), said="x"):
        self.allowance, self.plan, self.said, self.calls = allowance or Allowance(), dict(plan), said, 0

    def say(self, turn):
        self.calls += 1
        spent = Spent(100, 10, 0.25)
        self.allowance.reserve(spent)
        self.allowance.charge(spent)
        if self.calls in self.plan:
            raise self.plan[self.calls]
        number = sum(message["role"] == "assistant" for message in turn.messages)
        block = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"file": f"{number} {self.said}"}}
        return Answer((block,), "tool_use", *vars(spent).values())


def talk(chat, turns, turn=FIRST):
    """The answers of so many turns."""
    answers = []
    for number in range(turns):
        answers.append(chat.say(turn))
        turn = after(turn, answers[-1], f"result {number}")
    return answers


def kept(path, partner=None, allowance=None):
    return RecordedChat("partner", None if partner is None else lambda: partner, Transcript(path), allowance)


def replayed(path):
    return RecordedChat("partner", None, Transcript(path, writable=False))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "talk.jsonl"


def test_it_resumes_and_replays_without_the_model(path):
    partner = Partner()
    chat = kept(path, partner)
    assert isinstance(chat, Chat)
    said = talk(chat, 3)
    resumed = kept(path, partner)
    assert talk(resumed, 5)[:3] == said
    assert partner.calls == 5
    before = path.read_bytes()
    again = replayed(path)
    assert talk(again, 5)[:3] == said
    assert again.usage == resumed.usage == {"input_tokens": 500.0, "output_tokens": 50.0, "usd": 1.25}
    assert path.read_bytes() == before


def test_a_turn_is_kept_as_its_new_messages_only_and_the_tools_once(path):
    chat, turn = kept(path, Partner()), FIRST
    for number in range(30):
        turn = after(turn, chat.say(turn), f"{number}: " + "y" * 1000)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    asked = [row for row in rows if row["kind"] == "asked"]
    assert [len(row["messages"]) for row in asked] == [1] * 30
    assert [row["keeps"] for row in asked] == [2 * number for number in range(30)]
    assert sum("Reads a file." in json.dumps(row) for row in rows) == 1
    assert path.stat().st_size < 60_000
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_a_history_that_was_shortened_is_kept_too(path):
    partner = Partner()
    turn = FIRST
    chat = kept(path, partner)
    for _ in range(3):
        turn = after(turn, chat.say(turn))
    short = replace(turn, messages=({"role": "user", "content": "In short: nothing."},))
    answer = chat.say(short)
    assert replayed(path).say(short) == answer


def test_the_key_stays_out(path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret-0123456789")
    leaky = replace(FIRST, messages=({"role": "user", "content": "env: ANTHROPIC_API_KEY=sk-ant-secret-0123456789"},))
    said = talk(kept(path, Partner()), 2, leaky)
    assert "secret" not in path.read_text()
    assert talk(replayed(path), 2, leaky) == said


def test_a_replay_that_goes_another_way_says_where(path):
    talk(kept(path, Partner()), 3)
    other = replace(FIRST, messages=({"role": "user", "content": "Begin!"},))
    with pytest.raises(UserError, match=r"left .*talk.jsonl at turn 1: message 1 of it is another"):
        replayed(path).say(other)
    chat = replayed(path)
    turn = after(after(FIRST, chat.say(FIRST), "result 0"), chat.say(after(FIRST, chat.say(FIRST), "result 0")), "else")
    with pytest.raises(UserError, match="at turn 4: 3 are recorded"):
        chat.say(turn)
    chat = replayed(path)
    second = after(FIRST, chat.say(FIRST), "another result")
    with pytest.raises(UserError, match="at turn 2: message 3 of it is another"):
        chat.say(second)
    with pytest.raises(UserError, match="at turn 4: 3 are recorded"):
        talk(replayed(path), 4)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        ({"system": "You obey."}, "the system text is another"),
        (
            {"tools": (FIRST.tools[0], Tool("finish", "Stops it.", {"type": "object"}))},
            "the schema of finish is another",
        ),
        ({"tools": FIRST.tools[:1]}, "the schema of finish is another"),
        ({"tools": FIRST.tools[::-1]}, "the tools are in another order"),
    ],
)
def test_drift_of_what_the_model_was_told_is_named(path, edit, what):
    talk(kept(path, Partner()), 2)
    for chat in (replayed(path), kept(path, Partner())):
        with pytest.raises(UserError, match=f"talk.jsonl: {what}"):
            chat.say(replace(FIRST, **edit))


def test_another_model_is_another_conversation(path):
    talk(kept(path, Partner()), 1)
    with pytest.raises(UserError, match="it is held with other, not partner"):
        RecordedChat("other", None, Transcript(path)).say(FIRST)


def test_what_failed_attempts_used_is_kept(path):
    allowance = Allowance()
    chat = kept(path, Partner(allowance, {2: EnvironmentFault("no reply")}), allowance)
    answer = chat.say(FIRST)
    with pytest.raises(EnvironmentFault):
        chat.say(after(FIRST, answer))
    assert chat.usage["input_tokens"] == 200
    later = Allowance(tokens=1000)
    resumed = kept(path, Partner(later), later)
    assert later.spent == Spent(200, 20, 0.5)
    talk(resumed, 3)
    assert resumed.usage["input_tokens"] == replayed(path).usage["input_tokens"] == 400


def test_a_ceiling_stops_a_resumed_conversation_and_its_replay_alike(path):
    def run(chat):
        with pytest.raises(AllowanceSpent) as spent:
            talk(chat, 99)
        return str(spent.value)

    allowance = Allowance(usd=1.1)
    talk(kept(path, Partner(allowance), allowance), 2)
    again = Allowance(usd=1.1)
    partner = Partner(again)
    said = run(kept(path, partner, again))
    assert said == "$1.00 of its $1.10 are used, and the next answer could take $0.25"
    assert partner.calls == 3, "two more answers, and one refused"
    assert run(replayed(path)) == said
    raised = Allowance(usd=1.3)
    assert len(talk(kept(path, Partner(raised), raised), 5)) == 5, "under another ceiling it goes on"


def test_a_question_that_a_kill_left_open_counts_with_the_most_it_could_use(path):
    allowance = Allowance()
    talk(kept(path, Partner(allowance), allowance), 2)
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(b'{"sha256"') + 50])  # cut within the second answer
    later = Allowance()
    partner = Partner(later)
    resumed = kept(path, partner, later)
    second = after(FIRST, talk(resumed, 1)[0], "result 0")
    assert later.spent.tokens == 110 + most_input(second) + second.max_tokens
    assert len(talk(resumed, 2)) == 2
    assert partner.calls == 1
    assert resumed.usage["input_tokens"] == replayed(path).usage["input_tokens"] == 200
    assert len(talk(replayed(path), 2)) == 2
    once_more = Allowance()
    kept(path, partner, once_more)
    assert once_more.spent.tokens == 220 + most_input(second) + second.max_tokens, "it is not forgotten"


def test_an_unknown_price_stays_unknown(path):
    class Dear(Partner):
        def say(self, turn):
            return replace(super().say(turn), usd=math.nan)

    chat = kept(path, Dear())
    chat.say(FIRST)
    assert "usd" not in chat.usage
    assert math.isnan(replayed(path).say(FIRST).usd)


def test_a_file_that_something_else_writes_is_left_alone(path):
    one, other = kept(path, Partner()), kept(path, Partner())
    answer = one.say(FIRST)
    before = path.read_bytes()
    with pytest.raises(UserError, match="was changed by something else"):
        other.say(FIRST)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(UserError, match="was changed by something else"):
        one.say(after(FIRST, answer))


def test_a_place_that_cannot_be_used_is_the_environments_fault(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        kept(tmp_path / "file" / "talk.jsonl", Partner()).say(FIRST)


def test_replies_and_answers_share_a_file(path):
    from attune_lab.llm import Reply, Request
    from attune_lab.llm.recorded import RecordedLLM

    class Counter:
        name = "partner"

        def complete(self, request):
            return Reply({"n": 1}, 7, 2, 0.25)

    transcript = Transcript(path)
    request = Request("counter", "You count.", "Next?", {}, {"type": "object"})
    chat, llm = RecordedChat("partner", Partner, transcript), RecordedLLM("partner", Counter, transcript)
    first = chat.say(FIRST)
    llm.complete(request)
    second = chat.say(after(FIRST, first))
    transcript = Transcript(path, writable=False)
    assert RecordedLLM("partner", None, transcript).complete(request).body == {"n": 1}
    assert talk(RecordedChat("partner", None, transcript), 1) == [first]
    assert RecordedChat("partner", None, transcript).say(after(FIRST, first)) == second
    with pytest.raises(UserError, match=r"left .*talk.jsonl at question 1"):
        RecordedLLM("partner", None, transcript).complete(replace(request, prompt="else"))


def test_a_transcript_of_tens_of_megabytes_opens(path):
    turns = [replace(FIRST, messages=({"role": "user", "content": f"Begin {n}."},)) for n in range(80)]
    chat = kept(path, Partner(said="z" * 250_000))
    said = [chat.say(turn) for turn in turns]
    assert 20e6 < path.stat().st_size < 21e6
    again = replayed(path)
    assert [again.say(turn) for turn in turns] == said


WORDS = st.text(st.characters(), max_size=30)  # lone surrogates too, as a log read byte by byte may have them
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
HISTORIES = st.lists(st.tuples(WORDS, st.dictionaries(WORDS, JSON, max_size=3), WORDS), min_size=1, max_size=4)


class Told:
    """Says what a history has it say."""

    name = "partner"

    def __init__(self, history):
        self._history = iter(history)

    def say(self, turn):
        words, given, _ = next(self._history)
        block = {"type": "tool_use", "id": "t", "name": "read", "input": given}
        return Answer(({"type": "text", "text": words}, block), "tool_use", 10, 1, 0.1)


def play(chat, history, first):
    turn, answers = replace(FIRST, messages=({"role": "user", "content": first},)), []
    for _, _, result in history:
        answers.append(chat.say(turn))
        turn = after(turn, answers[-1], result)
    return answers


@settings(max_examples=50)
@given(HISTORIES, WORDS)
def test_any_history_survives_the_file(tmp_path_factory, history, first):
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    said = play(kept(path, Told(history)), history, first)
    assert play(replayed(path), history, first) == said


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of a short conversation."""
    path = tmp_path_factory.mktemp("talk") / "talk.jsonl"
    talk(kept(path, Partner()), 4)
    return path


def believed(path, data):
    """How many answers of a file are believed, and its last link; None where it is refused."""
    path.write_bytes(data)
    try:
        transcript = Transcript(path, writable=False)
    except UserError as error:
        return None if "talk-edited.jsonl, line " in str(error) else error
    return len(transcript), transcript.head


@settings(max_examples=300)
@given(st.data())
def test_any_single_edit_is_detected(written, data):
    whole = written.read_bytes()
    copy = written.with_name("talk-edited.jsonl")
    length = believed(copy, whole)
    assert length is not None
    place = data.draw(st.integers(0, len(whole) - 2), label="place")  # the last byte ends the last line
    kind = data.draw(st.sampled_from(["replace", "insert", "delete"]))
    byte = data.draw(st.binary(min_size=1, max_size=3))
    rest = whole[place:] if kind == "insert" else whole[place + 1 :]
    edited = whole[:place] + (b"" if kind == "delete" else byte) + rest
    if edited != whole:
        assert believed(copy, edited) is None


@given(st.data())
def test_dropped_doubled_and_moved_lines_are_detected(written, data):
    rows = written.read_bytes().splitlines(keepends=True)
    copy = written.with_name("talk-edited.jsonl")
    places = st.integers(0, len(rows) - 1)
    one, other = data.draw(places), data.draw(places)
    moved = rows[:one] + rows[one + 1 :]
    moved.insert(other, rows[one])
    if moved != rows:
        assert believed(copy, b"".join(moved)) is None
    assert believed(copy, b"".join(rows[:one] + rows[one:][:1] + rows[one:])) is None
    if one < len(rows) - 1:
        assert believed(copy, b"".join(rows[:one] + rows[one + 1 :])) is None


@settings(max_examples=50)
@given(st.data())
def test_a_file_cut_anywhere_is_believed_up_to_the_last_whole_line(written, data):
    whole = written.read_bytes()
    copy = written.with_name("talk-edited.jsonl")
    cut = data.draw(st.integers(0, len(whole)))
    copy.write_bytes(whole[:cut])
    lines = whole[: cut + 1].count(b"\n")  # a line that lacks its end alone is whole
    partner = Partner()
    assert len(talk(kept(copy, partner), 4)) == 4
    assert partner.calls == 4 - sum(b'"answered"' in row for row in whole.splitlines()[:lines])
    assert len(talk(replayed(copy), 4)) == 4


def test_the_last_link_tells_a_campaign_that_the_tail_was_dropped(written):
    rows = written.read_bytes().splitlines(keepends=True)
    copy = written.with_name("talk-edited.jsonl")
    assert believed(copy, b"".join(rows[:-2]))[1] != believed(copy, b"".join(rows))[1]
