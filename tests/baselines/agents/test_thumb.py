"""Rules of thumb: moves divide, the largest share comes first, and nothing of it is the agent's catalog."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from attune_lab.parameters import LAYOUT
from baselines.agents import thumb
from baselines.agents.cards import card_of
from tests.baselines.small_task import small_task

TASK = small_task()
CARD = card_of(TASK)
VALUES = CARD["recipe"]
LAYOUTS = TASK.space.enumerate_layouts()


def test_divisibility_is_that_of_the_space():
    legal = {tuple(layout[key] for key in LAYOUT) for layout in LAYOUTS}
    grid = list(itertools.product(*(CARD["parameters"][key]["choices"] for key in LAYOUT)))
    for sizes in random.Random(0).sample(grid, 4000) + sorted(legal)[:2000]:
        assert thumb.divides(dict(zip(LAYOUT, sizes, strict=True)), CARD) == (sizes in legal), sizes


@given(st.sampled_from(LAYOUTS), st.sampled_from(thumb.RULES))
def test_a_moved_lever_divides_and_changes_something(layout, rule):
    values = {**VALUES, **layout}
    changes = thumb.moved(rule.moves, values, CARD)
    if changes:
        assert rule.moves[0][0] in changes
        assert all(values.get(key) != value for key, value in changes.items())
        assert thumb.divides({**values, **changes}, CARD)


def test_up_and_down_find_the_next_size_that_divides():
    assert thumb.moved((("tp", "down"),), VALUES, CARD) == {"tp": 1}
    assert thumb.moved((("pp", "down"),), VALUES, CARD) == {"pp": 2}
    deep = {**VALUES, "pp": 1, "vpp": 1}
    assert thumb.moved((("pp", "down"),), deep, CARD) == {}
    assert thumb.moved((("vpp", "up"),), deep, CARD) == {}


def test_what_must_follow_follows():
    assert thumb.moved((("pp", "=1"),), VALUES, CARD) == {"pp": 1, "vpp": 1}
    plain = {**VALUES, "vpp": 1, "recompute": "full", "shared_expert_overlap": True}
    assert thumb.moved((("ep_overlap", "on"),), plain, CARD) == {
        "ep_overlap": True, "vpp": 2, "shared_expert_overlap": False, "recompute": "layernorm+moe_act",
    }  # fmt: skip
    assert thumb.completed({"recompute": "moe"}, {**VALUES, "ep_overlap": True}, CARD) == {
        "recompute": "moe", "ep_overlap": False,
    }  # fmt: skip


def test_the_largest_share_comes_first():
    first = thumb.levers(VALUES, {"compute": 0.6, "exposed_ep": 0.35, "bubble": 0.05}, CARD)[0]
    assert first["moves"] == [["ep_overlap", "on"]]
    first = thumb.levers(VALUES, {"compute": 0.6, "exposed_tp": 0.35, "bubble": 0.05}, CARD)[0]
    assert first["moves"] == [["tp", "down"]]
    assert thumb.levers({**VALUES, "recompute": "full"}, {"compute": 1.0}, CARD)[0]["moves"] == [["recompute", "down"]]
    savings = [lever["saves"] for lever in thumb.levers(VALUES, {}, CARD)]
    assert savings == sorted(savings, reverse=True)


def test_most_moves_are_legal_recipes():
    found = [*thumb.levers(VALUES, {}, CARD), *thumb.neighbours(VALUES, CARD, [])]
    moved = [changes for lever in found if (changes := thumb.moved(lever["moves"], VALUES, CARD))]
    legal = [changes for changes in moved if not TASK.space.problems(TASK.space.apply(TASK.baseline, changes))]
    assert len(legal) > 0.8 * len(moved)


def test_rules_name_parameters_that_exist():
    import importlib.resources

    from ruamel.yaml import YAML

    text = importlib.resources.files("attune_lab").joinpath("data/space.yaml").read_text()
    known = YAML(typ="safe").load(text)
    for rule in thumb.RULES:
        for key, step in rule.moves:
            assert key in known
            named = known[key].get("choices")
            assert not step.startswith("=") or step[1:] in map(str, named)
