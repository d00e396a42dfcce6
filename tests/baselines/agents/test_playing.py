"""How scripted players choose, and how much memory they expect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attune_lab.space import SearchSpace
from attune_lab.workbench import open_workbench
from baselines.agents import thumb
from baselines.agents.cards import card_of
from baselines.agents.memory import expected_bytes
from baselines.agents.playing import FULL, candidates, memory_ratio, more_room, with_room
from tests.baselines.small_task import small_task

TASK = small_task()
CARD = card_of(TASK)
VALUES = CARD["recipe"]
INCUMBENT = {"values": VALUES, "memory_share": 0.9, "inert": []}
RANKED = thumb.levers(VALUES, {"compute": 0.7, "exposed_tp": 0.2, "exposed_ep": 0.1}, CARD)


def first(known=(), count=1):
    found = []
    for candidate in candidates(CARD, INCUMBENT, RANKED, list(known)):
        found.append(candidate["changes"])
        if len(found) == count:
            break
    return found


def test_what_is_known_is_not_proposed():
    best, second, third = first(count=3)
    assert first([{"values": {**VALUES, **best}}]) == [second]
    assert first([{"changes": best}]) == [second]
    assert first([{"values": {**VALUES, **best}}, {"changes": second}]) == [third]
    key, value = next(iter(best.items()))
    assert first([{"forbidden": [[key, value]]}])[0].get(key) != value


def test_what_lost_on_another_incumbent_comes_last():
    best, second = first(count=2)
    lever = next(iter(best))
    lost = {"values": {}, "asked": {**best, "recompute": "full"}, "lever": lever, "gain": -0.2}
    everything = first([lost], 10**6)
    assert everything[0] == second
    assert best in everything
    assert first([{**lost, "gain": 0.1}]) == [best]


def test_candidates_end():
    everything = first(count=10**6)
    assert 40 < len(everything) < 200
    assert all(everything.count(changes) == 1 for changes in everything)


@pytest.mark.parametrize(
    ("recipe", "cluster"),
    [
        ("glm-4.5-air", "32xH100-SXM5-80GB"),
        ("qwen3-235b-a22b", "256xH100-SXM5-80GB"),
        ("gpt-oss-120b", "64xH100-SXM5-80GB"),
    ],
)
def test_memory_on_paper_is_near_the_cost_models(recipe, cluster):
    bench = open_workbench(recipe, cluster)
    space = SearchSpace(bench.baseline, bench.cluster)
    card = card_of(replace(TASK, baseline=bench.baseline, cluster=bench.cluster, space=space))
    expected = bench.cost_model.estimate([bench.baseline])[0].peak_memory_bytes
    assert expected_bytes(card["recipe"], card) == pytest.approx(expected, rel=0.35)


def test_memory_falls_with_recomputation_and_with_more_ranks():
    levels = CARD["parameters"]["recompute"]["choices"]
    by_level = {level: expected_bytes({**VALUES, "recompute": level}, CARD) for level in levels}
    assert by_level["none"] > by_level["moe_act"] > by_level["moe"] > by_level["layernorm+moe"] > by_level["full"]
    for key in ("tp", "pp", "ep", "etp"):
        more = {**VALUES, "vpp": 1, key: VALUES[key] * 2}
        assert expected_bytes(more, CARD) < expected_bytes({**VALUES, "vpp": 1}, CARD)
    assert expected_bytes({**VALUES, "mbs": 2}, CARD) > expected_bytes(VALUES, CARD)


def test_the_ratio_is_tied_to_what_the_incumbent_measured():
    assert memory_ratio(VALUES, INCUMBENT, CARD) == pytest.approx(0.9)
    assert memory_ratio({**VALUES, "recompute": "full"}, INCUMBENT, CARD) < 0.9


def test_room_is_made_by_the_narrowest_recomputation():
    assert with_room({"mbs": 1}, INCUMBENT, CARD) == {"mbs": 1}
    wider = with_room({"tp": 1}, INCUMBENT, CARD)
    assert wider is not None
    assert wider["recompute"] != "none"
    levels = CARD["parameters"]["recompute"]["choices"]
    for level in levels[: levels.index(wider["recompute"])]:
        assert memory_ratio({**VALUES, "tp": 1, "recompute": level}, INCUMBENT, CARD) > FULL
    assert with_room({"mbs": 16, "tp": 1, "pp": 1}, INCUMBENT, CARD) is None


def test_after_out_of_memory_what_was_short_is_freed():
    short = "CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 79.3 GiB"
    little, much = more_room(VALUES, CARD, short.format(0.5)), more_room(VALUES, CARD, short.format(500))
    levels = CARD["parameters"]["recompute"]["choices"]
    assert levels.index(little["recompute"]) < levels.index(much["recompute"])
    assert much == {"recompute": "full"}
    assert more_room(VALUES, CARD, "no figure") == {"recompute": levels[1]}
    assert more_room({**VALUES, "recompute": "full", "mbs": 2}, CARD, "") == {"mbs": 1}
    assert "pp" in more_room({**VALUES, "recompute": "full"}, CARD, "")
