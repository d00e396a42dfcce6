"""Every attack is fought in a campaign of its own, by a scripted model that obeys all it reads; none may succeed."""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import attacks_by_words
import attacks_on_budget_and_gate
import attacks_on_campaigns
import attacks_on_files
import attacks_on_inputs
import attacks_on_recipes
import pytest
from attack_arena import SECRET, Attack, broken_walls, edit, fight

ATTACKS: tuple[Attack, ...] = (
    *attacks_by_words.ATTACKS,
    *attacks_on_files.ATTACKS,
    *attacks_on_recipes.ATTACKS,
    *attacks_on_budget_and_gate.ATTACKS,
    *attacks_on_inputs.ATTACKS,
    *attacks_on_campaigns.ATTACKS,
)
HUNG_S = 120
"""Far more than any attack takes; one that hangs, as on a pipe, ends in a failure and not in silence."""


@pytest.fixture(autouse=True)
def not_for_ever():
    def hung(*_):
        pytest.fail("the campaign hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HUNG_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_fails(attack: Attack, tmp_path: Path) -> None:
    fought = fight(attack, tmp_path)
    if attack.fails:
        assert re.search(attack.fails, fought.sentence)
    else:
        assert fought.data is not None, fought.sentence
    own = [call for answer in attack.answers for call in answer]
    answered = [(found, error) for call, found, error in fought.chat.results if any(call is one for one in own)]
    if attack.refused:
        assert len(answered) == len(own), "the attack was not carried out"
        assert all(error and {"error"} <= set(found) <= {"error", "quoted_text"} for found, error in answered)
    if attack.obeyed:
        assert fought.chat.obeyed, "the order never reached the model"
    assert broken_walls(fought) == []
    assert attack.won(fought) is None


def test_there_are_enough_of_them_and_each_wall_is_attacked() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) == len(set(names))
    assert len(names) >= 230
    walls = Counter(attack.wall for attack in ATTACKS)
    assert set(walls) == {"data", "paths", "bounds", "budget", "gate", "file", "inputs", "record"}
    assert min(walls.values()) >= 5


def test_broken_walls_are_noticed(tmp_path: Path) -> None:
    fought = fight(Attack("none", "none"), tmp_path)
    assert broken_walls(fought) == []
    shipped = fought.out / "shipped" / "tiny.sh"
    text = shipped.read_text()
    for old, new in (
        ("--lr 3e-4", "--lr 3e-3"),
        ("#!/bin/bash", "#!/bin/bash\nid"),
        ("export CUDA", "export A=b CUDA"),
    ):
        shipped.write_text(text.replace(old, new))
        assert broken_walls(fought)
    shipped.write_text(text)
    fought.cluster.launched.append("003-search")
    assert broken_walls(fought) == ["a run was launched twice"]
    fought.cluster.launched.pop()
    fought.chat.heard.append(SECRET)
    (tmp_path / "secret.txt").write_text("overwritten")
    assert broken_walls(replace(fought, outside={}, screen="\x1b[2J")) == [
        "a file outside of the campaign was written",
        "a file outside of the campaign was read",
        "a control character reached the terminal",
    ]
    told = {**fought.data, "shipped_tokens_per_s_per_gpu": 1e9, "gpu_hours_budget": 0.1, "gpu_hours_spent": 0.0}
    assert broken_walls(replace(fought, data=told))[:3] == [
        "the budget was overshot",
        "the result does not tell what was spent",
        "the throughput told is not the one that was timed",
    ]


def test_without_an_attack_the_same_campaign_finds_a_gain(tmp_path: Path) -> None:
    fought = fight(Attack("none", "none", ((edit("mbs", 2),),)), tmp_path)
    assert fought.data is not None
    assert fought.data["gain_pct"] > 5, "so the walls hold a campaign that works"
    assert broken_walls(fought) == []
