"""The real SDK against a local server: what is sent, what comes back, and what is done about every fault."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.llm.allowance import Allowance
from attune_lab.llm.chat import AllowanceSpent, Chat
from attune_lab.llm.claude import ClaudeChat
from attune_lab.llm.prices import price_of
from attune_lab.llm.service import EFFORTS, MAX_ATTEMPTS, MAX_BYTES, Service
from attune_lab.llm.tokens import most_input
from experiments.claude_offline import messages_rules
from experiments.claude_offline.messages_api import Fail, Raw, Reset, Say, Silent, call, faulty, text, thinking, turns
from tests.attune_lab.llm.talking import FIRST, after, service

pytest.importorskip("anthropic")

GOOD = Say([text("Let me look."), call("read", {"file": "train.sh"})])


def say(*outcomes, turn=FIRST, **settings):
    """The answer to `turn` or what was raised instead, the server, and the clock."""
    with service(list(outcomes), **settings) as (sender, api, clock):
        try:
            return ClaudeChat(sender).say(turn), api, clock
        except (AllowanceSpent, EnvironmentFault, UserError) as error:
            return error, api, clock


def dollars(row, model="claude-opus-5"):
    new, written, read, output = (row[key] for key in row)
    return price_of(model).usd(new=new, written=written, read=read, output=output)


def test_an_answer_with_its_blocks_tokens_and_dollars():
    answer, api, _ = say(Say([thinking(""), text("Both."), call("read", {"file": "a"}), call("read", {"file": "b"})]))
    assert [block["type"] for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[1:3] == (text("Both."), {**call("read", {"file": "a"}), "id": "toolu_1"})
    assert answer.stop_reason == "tool_use"
    assert (answer.input_tokens, answer.output_tokens) == api.billed_tokens
    assert answer.usd == pytest.approx(dollars(api.billed[0]))


def test_what_is_sent():
    _, api, _ = say(GOOD, effort="low")
    assert EFFORTS == messages_rules.EFFORTS
    [(headers, body)] = api.seen
    assert headers["x-api-key" if "x-api-key" in headers else "authorization"].endswith("test-key")
    assert (body["model"], body["max_tokens"], body["stream"]) == ("claude-opus-5", 500, True)
    assert body["output_config"] == {"effort": "low"}
    assert [tool["input_schema"] for tool in body["tools"]] == [tool.schema for tool in FIRST.tools]
    assert "tool_choice" not in body


def test_a_conversation_goes_back_unchanged_and_each_turn_reads_the_one_before_from_the_cache():
    def talk(body):
        return Say([thinking(f"turn {turns(body)}"), *(call("read", {"file": str(n)}) for n in range(15))])

    with service(talk) as (sender, api, _):
        chat, turn = ClaudeChat(sender), FIRST
        assert isinstance(chat, Chat)
        for _ in range(4):
            turn = after(turn, chat.say(turn), "x" * 400)
    for before, now in zip(api.billed, api.billed[1:], strict=False):
        known = before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]
        assert now["cache_read_input_tokens"] == known
        assert now["input_tokens"] < 10, "all else is written to the cache"
    assert "cache_control" not in json.dumps(turn.messages)


def test_a_price_that_is_not_known_is_nan():
    assert say(GOOD, model="claude-opus-5-20260501")[0].usd > 0
    assert math.isnan(say(GOOD, model="someone-elses")[0].usd)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_busy_service_is_asked_again_with_growing_waits(status):
    answer, api, clock = say(Fail(status), Fail(status), GOOD)
    assert answer.stop_reason == "tool_use"
    assert len(api.seen) == 3
    assert clock.waits == [0.5, 1.0]


def test_each_further_attempt_is_a_line_in_the_log(caplog):
    say(Fail(529), Reset(), GOOD)
    busy, broken = caplog.messages
    assert busy == "claude-opus-5: the service says 529 (as scripted); asked again in 0.5 s"
    assert "the connection to 127.0.0.1 failed" in broken


def test_an_address_is_named_without_the_secrets_it_holds():
    with pytest.raises(EnvironmentFault, match=r"at http://127\.0\.0\.1:9 in") as refused:
        Service(base_url="http://me:s3cret@127.0.0.1:9", sleep=lambda _: None).try_once()
    assert "s3cret" not in str(refused.value)


def test_the_wait_that_the_service_names_is_kept():
    assert say(Fail(429, "3"), Fail(529, "0.25"), GOOD)[2].waits == [3.0, 0.25]
    assert say(Fail(429, "soon"), GOOD)[2].waits == [0.5]
    assert say(Fail(429, "nan"), GOOD)[2].waits == [0.5]


def test_a_wait_beyond_the_deadline_is_not_waited_for():
    error, api, clock = say(Fail(429, "4000000"), deadline_s=60)
    assert isinstance(error, EnvironmentFault)
    assert "within 60 s: the service says 429 (as scripted)" in str(error)
    assert (len(api.seen), clock.waits) == (1, [])


def test_a_service_that_stays_busy_is_given_up():
    error, api, _ = say(Fail(529))
    assert isinstance(error, EnvironmentFault)
    assert f"in {MAX_ATTEMPTS} attempts" in str(error)
    assert f"no reply from claude-opus-5 at {api.url} in" in str(error)
    assert "ANTHROPIC_BASE_URL" in str(error)
    assert len(api.seen) == MAX_ATTEMPTS


BROKEN = {
    "cut within a block": (replace(GOOD, cut="mid-block"), "cut off"),
    "cut after a block": (replace(GOOD, cut="after-block"), "cut off"),
    "cut before the end": (replace(GOOD, cut="before-stop"), "cut off"),
    "reset while it answers": (replace(GOOD, cut="after-block", ends_in="reset"), "the connection to 127.0.0.1 failed"),
    "an error while it answers": (replace(GOOD, cut="after-block", ends_in="error"), "as scripted"),
    "reset at once": (Reset(), "the connection to 127.0.0.1 failed"),
    "no JSON": (Raw("event: message_start\ndata: {nonsense\n\n"), "not in its format"),
    "no message": (Raw("{}", "application/json"), "cut off"),
    "a list": (Raw("event: message_start\ndata: []\n\n"), "not in its format"),
    "deep JSON": (Raw(f"event: message_start\ndata: {'[' * 100_000}\n\n"), "not in its format"),
    "a page of a proxy": (Raw("<html>busy</html>", "text/html"), "127.0.0.1 answers with a web page"),
    "bytes": (Raw("\x00\x01" * 50), "cut off"),
    "a call that is no JSON": (Say([call("read", '{"file": oops}')]), "not JSON"),
    "a call cut short": (Say([call("read", '{"file": "a')]), "not JSON"),
    "a call with an infinite number": (Say([call("read", '{"file": 1e999}')]), "not JSON"),
    "a call with a list": (Say([call("read", "[1]")]), "no object"),
    "a call without a name": (Say([call("", {})]), "no name"),
    "two calls with one id": (Say([call("read", {}, "same"), call("read", {}, "same")]), "one id"),
    "a block nobody asked for": (Say([{"type": "hologram", "data": "?"}]), "not asked for"),
    "too long": (Say([text("x" * (MAX_BYTES + 1))]), "longer than"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_used_is_asked_for_again(kind):
    broken, why = BROKEN[kind]
    answer, api, _ = say(broken, GOOD)
    assert answer.stop_reason == "tool_use", answer
    assert len(api.seen) == 2
    if kind != "too long":
        error, _, _ = say(broken, deadline_s=1)
        assert isinstance(error, EnvironmentFault)
        assert why in str(error)


@pytest.mark.parametrize("outcome", [Silent(), Silent(0.05), replace(GOOD, pause_s=0.1), Fail(500, drip_s=0.1)])
def test_a_service_that_is_silent_or_slow_is_given_up_at_the_deadline(outcome):
    begun = time.monotonic()
    error, _, _ = say(outcome, deadline_s=0.4, clock=time.monotonic, sleep=time.sleep)
    assert isinstance(error, EnvironmentFault)
    assert "within 0.4 s" in str(error)
    assert time.monotonic() - begun < 20, "the server itself would never end"


@pytest.mark.parametrize("address", ["nonsense", "ftp://files.example", "http://a:b:99x/", "http://"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(monkeypatch, address):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    with pytest.raises(UserError, match="ANTHROPIC_BASE_URL is no address"):
        Service()


def test_a_key_with_a_line_end_is_refused_before_anything_is_sent(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test\r")
    with pytest.raises(UserError, match="a line end"):
        Service()


def test_nobody_listens():
    with service(GOOD) as (sender, _, _):
        pass
    with pytest.raises(EnvironmentFault, match=r"in 6 attempts: the connection to 127\.0\.0\.1 failed"):
        ClaudeChat(sender).say(FIRST)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "ANTHROPIC_API_KEY"),
        (403, "ANTHROPIC_API_KEY"),
        (404, "is claude-opus-5 the model's name?"),
        (400, "mend what it names"),
        (413, "413"),
    ],
)
def test_what_waiting_cannot_mend_is_said_at_once(status, advice):
    error, api, _ = say(Fail(status, message=f"as scripted {status}"))
    assert isinstance(error, UserError)
    assert advice in str(error)
    assert len(api.seen) == 1


def test_what_the_service_says_is_shown_short_and_without_the_key():
    error, _, _ = say(Fail(401, message="bad key test-key \x1b[2J\nsecond line" + "x" * 5000))
    assert "test-key" not in str(error)
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize("stop", ["refusal", "max_tokens", "pause_turn", "model_context_window_exceeded", "end_turn"])
def test_why_it_stopped_is_passed_on(stop):
    answer, _, _ = say(Say([text("Well.")], stop))
    assert (answer.content, answer.stop_reason) == ((text("Well."),), stop)


def test_a_call_that_the_limit_cut_off_is_left_out_and_nothing_may_be_left():
    answer, _, _ = say(Say([text("Look:"), call("read", '{"file": "a')], "max_tokens"))
    assert (answer.content, answer.stop_reason) == ((text("Look:"),), "max_tokens")
    assert say(Say([call("read", '{"file": "a')], "max_tokens"))[0].content == ()
    assert say(Say([]))[0].content == ()
    assert say(Say([text(" "), call("read", {})]))[0].content == ({**call("read", {}), "id": "toolu_1"},)


def test_a_call_that_does_not_fit_is_the_callers_to_answer():
    answer, _, _ = say(Say([call("launch_missiles", {"at": 3}), call("read", {"flie": "a"})]))
    assert [block["name"] for block in answer.content] == ["launch_missiles", "read"]


def test_the_key_is_not_sent_as_text():
    leaky = replace(FIRST, messages=({"role": "user", "content": "log: ANTHROPIC_API_KEY=test-key"},))
    _, api, _ = say(GOOD, turn=leaky)
    assert "test-key" not in json.dumps(api.seen[0][1])


def test_a_paused_turn_goes_on():
    with service([Say([text("Wait.")], "pause_turn"), GOOD]) as (sender, _, _):
        paused = ClaudeChat(sender).say(FIRST)
        again = replace(FIRST, messages=(*FIRST.messages, {"role": "assistant", "content": list(paused.content)}))
        assert ClaudeChat(sender).say(again).stop_reason == "tool_use"


def test_an_effort_that_there_is_not():
    with pytest.raises(UserError, match="there is no effort 'most'; give one of low, medium, high, xhigh, max"):
        Service(effort="most")


def test_any_text_can_be_sent():
    odd = replace(FIRST, messages=({"role": "user", "content": "log: \ud83d \x00 \u2028 ü"},))
    answer, api, _ = say(GOOD, turn=odd)
    assert answer.stop_reason == "tool_use"
    assert api.seen[0][1]["messages"][0]["content"][0]["text"] == "log: ? \x00 \u2028 ü"


def test_tokens_are_counted_by_the_service_or_else_estimated():
    with service([GOOD]) as (sender, api, _):
        count = ClaudeChat(sender).count(FIRST)
        ClaudeChat(sender).say(FIRST)
        assert (count.tokens, count.estimated) == (api.billed_tokens[0], False)
    with service([GOOD], counts=False) as (sender, api, _):
        estimate = ClaudeChat(sender).count(FIRST)
        assert estimate.estimated
        assert estimate.tokens == pytest.approx(count.tokens, rel=0.5)
        assert api.seen == []


def test_a_turn_that_could_overshoot_is_not_sent():
    price = price_of("claude-opus-5")
    with service([GOOD]) as (sender, _, _):
        counted = ClaudeChat(sender).count(FIRST).tokens
    most = counted + FIRST.max_tokens
    dear = (counted * price.cache_write + FIRST.max_tokens * price.output) / 1e6
    for ceiling, fits in (
        ({"tokens": most}, True),
        ({"tokens": most - 1}, False),
        ({"usd": dear * 1.001}, True),
        ({"usd": dear * 0.999}, False),
    ):
        said, api, _ = say(GOOD, allowance=Allowance(**ceiling))
        assert isinstance(said, AllowanceSpent) != fits
        assert len(api.seen) == fits
        assert len(api.counted) == 1, "the length alone does not settle it"


def test_the_length_alone_decides_far_from_the_ceiling_and_where_nobody_counts():
    _, api, _ = say(GOOD, allowance=Allowance(tokens=100_000))
    assert api.counted == []
    most = most_input(FIRST) + FIRST.max_tokens
    said, api, _ = say(GOOD, allowance=Allowance(tokens=most), counts=False)
    assert len(api.seen) == 1
    said, api, _ = say(GOOD, allowance=Allowance(tokens=most - 1), counts=False)
    assert isinstance(said, AllowanceSpent)
    assert api.seen == []


@pytest.mark.parametrize("cut", ["mid-block", "after-block", "before-stop"])
def test_what_failed_attempts_cost_is_part_of_the_answer(cut):
    answer, api, _ = say(replace(GOOD, cut=cut), GOOD)
    assert answer.input_tokens == api.billed_tokens[0]
    output = [row["output_tokens"] for row in api.billed]
    assert output[1] < answer.output_tokens <= sum(output) + 5, "by its length, where the service did not tell"
    assert dollars(api.billed[1]) < answer.usd < 1.05 * sum(map(dollars, api.billed))


def test_failed_attempts_count_against_the_ceiling():
    broken = replace(GOOD, cut="before-stop")
    allowance = Allowance(tokens=1000)
    said, api, _ = say(broken, allowance=allowance)
    assert isinstance(said, AllowanceSpent)
    assert 1 < len(api.seen) < MAX_ATTEMPTS
    assert (allowance.spent.input_tokens, allowance.spent.output_tokens) == api.billed_tokens
    assert allowance.spent.tokens <= 1000


def endless(chat):
    turn = FIRST
    while True:
        turn = after(turn, chat.say(turn))


def test_one_ceiling_holds_over_many_turns():
    allowance = Allowance(usd=0.05)
    said = r"of its \$0.05 are used, and the next answer could take"
    with (
        service(lambda body: GOOD, allowance=allowance) as (sender, api, _),
        pytest.raises(AllowanceSpent, match=said),
    ):
        endless(ClaudeChat(sender))
    assert 3 < len(api.seen) < 100
    assert 0.03 < sum(map(dollars, api.billed)) <= 0.05


def test_faults_in_a_script_do_not_hide():
    script = faulty(lambda body: GOOD, {2: Fail(529)})
    with service(script) as (sender, _, clock):
        turn = after(FIRST, ClaudeChat(sender).say(FIRST))
        ClaudeChat(sender).say(turn)
    assert clock.waits == [0.5]
    with pytest.raises(ZeroDivisionError), service(lambda body: 1 / 0) as (sender, _, _), pytest.raises(UserError):
        ClaudeChat(sender).say(FIRST)
