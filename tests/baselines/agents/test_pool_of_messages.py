"""Subscriptions, windows, and who acts when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baselines.agents.pool import Pool, Role


def role(name="reader", awaits=("news",), needs=(), **reads):
    return Role(name, "", frozenset(awaits), reads or {"news": 2}, "", {}, frozenset(needs))


def test_a_role_sees_the_kinds_it_subscribes_to():
    pool = Pool()
    pool.publish("a", "news", 1, {"n": 1})
    pool.publish("a", "gossip", 1, {"n": 2})
    assert pool.read(role(news=1)) == [{"kind": "news", "iteration": 1, "n": 1}]
    assert pool.read(role(weather=1)) == []


def test_beyond_the_window_only_the_brief_is_left():
    pool = Pool()
    for n in range(4):
        pool.publish("a", "news", n, {"n": n, "text": "long"}, {"n": n} if n != 1 else None)
    seen = pool.read(role(news=2))
    assert [(row["iteration"], "text" in row) for row in seen] == [(0, False), (2, True), (3, True)]


def test_windows_count_each_kind_by_itself():
    pool = Pool()
    for n in range(3):
        pool.publish("a", "news", n, {"n": n})
        pool.publish("a", "gossip", n, {"n": n})
    seen = pool.read(role(news=1, gossip=2))
    assert [(row["kind"], row["n"]) for row in seen] == [("gossip", 1), ("news", 2), ("gossip", 2)]


def test_a_role_acts_only_when_something_it_awaits_is_new():
    pool, reader = Pool(), role()
    assert not pool.fires(reader)
    pool.publish("a", "gossip", 1, {})
    assert not pool.fires(reader)
    pool.publish("a", "news", 1, {})
    assert pool.fires(reader)
    pool.read(reader)
    assert not pool.fires(reader)
    pool.publish("a", "news", 2, {})
    assert pool.fires(reader)


def test_a_role_acts_only_when_all_it_needs_is_there():
    pool, reader = Pool(), role(needs=("weather", "gossip"))
    pool.publish("a", "news", 1, {})
    pool.publish("a", "weather", 1, {})
    assert not pool.fires(reader)
    pool.publish("a", "gossip", 1, {})
    assert pool.fires(reader)


def test_the_order_of_the_team_decides_between_roles_that_could_act():
    pool, first, second = Pool(), role("first"), role("second")
    pool.publish("a", "news", 1, {})
    assert pool.next_of([first, second]) is first
    pool.read(first)
    assert pool.next_of([first, second]) is second
    pool.read(second)
    assert pool.next_of([first, second]) is None


def test_without_the_pool_a_role_sees_the_last_message_alone():
    pool = Pool(last_only=True)
    pool.publish("a", "news", 1, {"n": 1})
    pool.publish("a", "news", 2, {"n": 2})
    assert [row["n"] for row in pool.read(role(news=2))] == [2]
    pool.publish("a", "gossip", 2, {"n": 3})
    assert pool.read(role(news=2)) == []


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=20), st.integers(1, 4))
def test_what_is_shown_is_what_was_published_in_order(published, window):
    pool, reader = Pool(), role(awaits="x", x=window, y=window)
    for n, (kind, has_brief) in enumerate(published):
        pool.publish("a", kind, n, {"full": n}, {"brief": n} if has_brief else None)
    seen = pool.read(reader)
    order = [row.get("full", row.get("brief")) for row in seen]
    assert order == sorted(order)
    for kind in "xy":
        mine = [n for n, (k, _) in enumerate(published) if k == kind]
        assert [row["full"] for row in seen if row["kind"] == kind and "full" in row] == mine[-window:]
        briefs = [n for n in mine[:-window] if published[n][1]]
        assert [row["brief"] for row in seen if row["kind"] == kind and "brief" in row] == briefs
    assert not any(row["kind"] == "z" for row in seen)
