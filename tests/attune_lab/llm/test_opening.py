"""From options to a model: where its transcript is, its ceiling, and how it is replayed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm import Request
from attune_lab.llm.chat import AllowanceSpent
from attune_lab.llm.opening import open_chat, open_llm, replaying, transcript_path, trying
from attune_lab.llm.transcript import Transcript
from experiments.claude_offline.messages_api import Fail, Raw, Say, call, messages_api, text
from tests.attune_lab.llm.talking import FIRST, after

SCRIPTS = {"counter": lambda facts: {"n": facts["a"]}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def request(a):
    return Request("counter", "You count.", "Next?", {"a": a}, SCHEMA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "talk.jsonl"


@pytest.fixture
def online(monkeypatch):
    pytest.importorskip("anthropic")
    with messages_api(lambda body: Say([text("Hm."), call("read", {"file": "a"})])) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        yield api


def test_where_a_transcript_is(tmp_path):
    desk, none = SimpleNamespace(desk=SimpleNamespace(folder=tmp_path)), SimpleNamespace(desk=None)
    assert transcript_path(desk, "claude", "") == tmp_path / "transcript.jsonl"
    assert transcript_path(none, "claude", "") is None
    assert transcript_path(desk, "scripted", "") is None
    assert str(transcript_path(none, "scripted", "talk.jsonl")) == "talk.jsonl"
    assert str(transcript_path(desk, "claude", "talk.jsonl")) == "talk.jsonl"


def test_scripted_players(path):
    llm = open_llm("scripted", SCRIPTS, transcript=path)
    assert (llm.name, llm.complete(request(3)).body) == ("scripted", {"n": 3})
    assert [exchange.body for exchange in Transcript(path)] == [{"n": 3}]


def test_scripted_players_keep_to_a_ceiling_on_tokens():
    llm = open_llm("scripted", SCRIPTS, tokens=2200, usd=0.01)
    with pytest.raises(AllowanceSpent, match="of its 2200 tokens are used"):
        list(map(llm.complete, map(request, range(100))))
    assert 100 < sum(llm.usage.values()) < 2200
    assert llm.usage["usd"] == 0


def test_scripted_players_replay(path):
    llm = open_llm("scripted", SCRIPTS, transcript=path)
    llm.complete(request(1))
    with replaying(path):
        assert open_llm("scripted", {"counter": lambda facts: 1 / 0}).complete(request(1)).body == {"n": 1}
        before = path.read_bytes()
        assert open_llm("scripted", SCRIPTS).complete(request(2)).body == {"n": 2}, "they ask nobody"
    assert path.read_bytes() == before
    with replaying(path.with_name("none.jsonl")):
        assert open_llm("scripted", SCRIPTS).complete(request(5)).body == {"n": 5}
    assert not path.with_name("none.jsonl").exists()


def test_a_conversation_and_its_replay(path, online, monkeypatch):
    chat = open_chat(transcript=path, effort="high", usd=1.0)
    first = chat.say(FIRST)
    second = chat.say(after(FIRST, first))
    assert [body["output_config"] for _, body in online.seen] == [{"effort": "high"}] * 2
    assert chat.usage["input_tokens"] == online.billed_tokens[0]
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with replaying(path):
        again = open_chat(effort="high", usd=1.0)
    assert (again.say(FIRST), again.say(after(FIRST, first))) == (first, second)
    assert again.usage == chat.usage
    with pytest.raises(UserError, match="at turn 3: 2 are recorded"):
        again.say(after(after(FIRST, first), second))
    with replaying(path.with_name("none.jsonl")), pytest.raises(UserError, match="at turn 1: 0 are recorded"):
        open_chat().say(FIRST)


def test_a_dollar_ceiling_holds_over_a_resumed_conversation(path, online):
    first = open_chat(transcript=path, usd=0.0145).say(FIRST)
    with pytest.raises(AllowanceSpent, match=r"of its \$0.01 are used"):
        open_chat(transcript=path, usd=0.0145).say(after(FIRST, first))
    assert len(online.seen) == 1
    assert open_chat(transcript=path, usd=1.0).say(after(FIRST, first)).stop_reason == "tool_use"


def test_dollars_without_a_price_are_refused_at_once():
    for opened in (
        lambda: open_chat(model="mystery", usd=2.0),
        lambda: open_llm("claude", {}, model="mystery", usd=2.0),
    ):
        with pytest.raises(UserError, match=r"a ceiling of \$2 needs the price of mystery, .*: give tokens instead"):
            opened()


OPENED = [open_chat, lambda **more: open_llm("claude", {}, **more)]


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Fail(401), "set ANTHROPIC_API_KEY to a valid one"),
        (Fail(404, message="model: claude-opus-5"), "the model's name"),
    ],
)
def test_what_the_service_refuses_is_known_at_once_where_it_is_tried(path, monkeypatch, opened, outcome, said):
    with messages_api([], counts=outcome) as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        opened(transcript=path)
        assert api.counted == []
        with trying(), pytest.raises(UserError, match=said):
            opened(transcript=path)
        with trying(), replaying(path):
            opened()
    assert len(api.counted) == 1
    assert api.seen == []


@pytest.mark.parametrize(
    "outcome",
    [True, False, Fail(400), Fail(429), Fail(503), Raw("<html></html>", "text/html"), Raw("no", "text/plain")],
)
def test_a_service_that_answers_anything_else_is_not_refused(path, monkeypatch, outcome):
    with messages_api([Say([text("Hm.")])], counts=outcome) as api, trying():
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        open_chat(transcript=path).say(FIRST)
        assert len(api.counted) == 1
        open_chat(transcript=path)
        assert len(api.counted) == 1, "what has a transcript was tried before"


def test_where_nobody_answers_that_is_known_at_once(path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with trying(), pytest.raises(EnvironmentFault, match=r"at http://127\.0\.0\.1:9 in 2 attempts"):
        open_chat(transcript=path)


def test_without_a_key(monkeypatch):
    pytest.importorskip("anthropic")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    for opened in (open_chat, lambda: open_llm("claude", {})):
        with pytest.raises(UserError, match="set ANTHROPIC_API_KEY"):
            opened()
